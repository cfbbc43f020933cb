#include "output_file.hpp"

#include <fmt/format.h>

#include <fstream>

import tessera.base;

namespace tessera::app {

namespace {

bool is_written(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return static_cast<bool>(file);
}

}  // namespace

void write_output(const std::string& thing, const std::string& path, const std::string& text) {
  if (!is_written(path, text)) {
    fail_input({.thing = thing,
                .wrong = fmt::format("cannot write {}", path),
                .advice = "check that its folder exists and is writable"});
  }
}

void write_text(const std::string& path, const std::string& text) {
  if (!is_written(path, text + "\n")) {
    fail({.thing = path, .wrong = "cannot be written"});
  }
}

}  // namespace tessera::app
