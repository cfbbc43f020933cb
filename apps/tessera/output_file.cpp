#include "output_file.hpp"

#include <fmt/format.h>

#include <string>

import tessera.base;

namespace tessera::app {

void write_output(const std::string& thing, const std::string& path, const std::string& text) {
  if (const std::string why = write_file(path, text); !why.empty()) {
    fail_input({.thing = thing,
                .wrong = fmt::format("cannot write {}: {}", path, why),
                .advice = "name a file in a folder that exists, is writable and has room"});
  }
}

void write_text(const std::string& path, const std::string& text) {
  if (const std::string why = write_file(path, text + "\n"); !why.empty()) {
    fail({.thing = path, .wrong = "cannot be written: " + why});
  }
}

}  // namespace tessera::app
