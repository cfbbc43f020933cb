#include "output_file.hpp"

#include <fmt/format.h>

#include <fstream>

import tessera.base;

namespace tessera::app {

void write_output(const std::string& thing, const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    fail_input({.thing = thing,
                .wrong = fmt::format("cannot write {}", path),
                .advice = "check that its folder exists and is writable"});
  }
}

}  // namespace tessera::app
