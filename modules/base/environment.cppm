export module tessera.base:environment;

import :standard;

export namespace tessera {

/// The variable's value; nothing when it is unset or empty.
std::optional<std::string> environment_variable(const char* name);

/// Whether stderr (stdout) is a terminal on which colour is welcome (NO_COLOR unset, TERM not
/// dumb).
bool colour_on_stderr();
bool colour_on_stdout();

/// Processor cores that this process may use (its affinity mask), at least 1.
int available_cores();

}  // namespace tessera
