export module tessera.app.server:access;

import tessera.app.base;
import :http_message;

// Who may use the model.

export namespace tessera::app {

/// The token in the first line of a file, without blanks at its ends. Errors (input): the file is
/// not a regular one of this user or root, others may read or write it, or it is too large; the
/// token is empty, or has control characters, which no client can send.
std::string read_token(const std::string& path);

/// Whether the address is one of this machine alone: an address of the loopback network, or the
/// name localhost.
bool is_local(std::string_view host);

/// Why a request is refused by its header; nothing: it may be answered. With a token (not empty),
/// it must have it. Without one, pages in a browser must not reach the model: the host must be this
/// machine, an origin that is named too, and a body must be JSON, for which browsers ask first.
std::optional<HttpProblem> access_problem(const HttpHead& head, const std::string& token);

}  // namespace tessera::app
