// What the sinks of this plugin share: requests to one server, within limits of time and size.
// Included after the imports of tessera.base, tessera.options and tessera.sinks.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace http_sinks {

/// How a server is reached; secrets are named, not held.
struct ServerOptions {
  std::string url = {};
  std::string token_env = {};
  std::string token_file = {};
  std::string user = {};  // with it, the token is a password
};

/// Reads the address, token_env, token_file and user. Errors (input): no URL of HTTP, one with a
/// password.
ServerOptions read_server_options(tessera::PluginOptions& options, const std::string& url);

/// Error (input): the token cannot be read.
void check_token(const std::string& thing, const ServerOptions& options);

struct Answer {
  long code = 0;
  std::string body = {};
};

/// Sends to one server. Redirects are not followed, and answers are bounded.
class HttpClient {
 public:
  HttpClient(std::string thing, ServerOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// The answer to JSON that is sent, or without it to a request to get something: one of 200 to
  /// 299, or `expected`. Throws UnavailableError for what may pass (no connection, no time, 408,
  /// 429, 5xx), Error for the rest, without the token.
  Answer request(const std::string& path, const std::optional<std::string>& json,
                 long expected = 200);
  /// As a part of a URL.
  std::string escaped(const std::string& text) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::unique_ptr<tessera::sinks::Sink> make_otlp_sink(tessera::PluginOptions& options);
std::unique_ptr<tessera::sinks::Sink> make_mlflow_sink(tessera::PluginOptions& options);

}  // namespace http_sinks
