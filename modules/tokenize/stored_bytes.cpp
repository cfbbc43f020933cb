#include "stored_bytes.hpp"

#include <fmt/format.h>

#include <tessera/base64.hpp>
#include <tessera/shown.hpp>
#include <utility>

import tessera.base;

namespace tessera::tokenize {

std::string bytes_in_base64(std::string_view text, const std::string& where) {
  auto bytes = from_base64(text);
  if (!bytes) {
    fail_input({.thing = where, .wrong = fmt::format("'{}' is not base64", shown(text, 40))});
  }
  return std::move(*bytes);
}

}  // namespace tessera::tokenize
