module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <tessera/content_hash.hpp>
#include <tessera/secret_file.hpp>
#include <tessera/shown.hpp>
module tessera.sinks;

import tessera.base;

namespace tessera::sinks {

std::string id_of(std::string_view text) { return content_hash(std::as_bytes(std::span(text))); }

std::string cut_text(std::string_view text, std::size_t most) {
  constexpr std::size_t of_the_note = 40;  // "... (12345 bytes)"
  return text.size() <= most ? std::string(text)
                             : shown(text, most - std::min(most / 2, of_the_note));
}

std::string read_secret(const std::string& where, const std::string& path) {
  SecretFile file = read_secret_file(path);
  if (!file.wrong.empty()) {
    fail_input({.where = where, .thing = path, .wrong = file.wrong});
  }
  file.bytes.erase(file.bytes.find_last_not_of(" \t\r\n") + 1);
  return file.bytes;
}

}  // namespace tessera::sinks
