module;
#include <stdexcept>
#include <string>
module tessera.base;

namespace tessera {

Error::Error(const std::string& text, ErrorKind kind) : std::runtime_error(text), kind_(kind) {}

ErrorKind Error::kind() const noexcept { return kind_; }

void fail(const std::string& text) { throw Error(text, ErrorKind::run); }

void fail_input(const std::string& text) { throw Error(text, ErrorKind::input); }

}  // namespace tessera
