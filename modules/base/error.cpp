module;
#include <stdexcept>
#include <string>
#include <utility>
module tessera.base;

namespace tessera {

Error::Error(std::string text, ErrorKind kind) : std::runtime_error(std::move(text)), kind_(kind) {}

ErrorKind Error::kind() const noexcept { return kind_; }

void fail(std::string text) { throw Error(std::move(text), ErrorKind::run); }

void fail_input(std::string text) { throw Error(std::move(text), ErrorKind::input); }

}  // namespace tessera
