#include "output_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

import tessera.base;

namespace tessera::app {

namespace {

/// "" or why it cannot be written.
std::string written(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? std::string() : std::generic_category().message(errno != 0 ? errno : EIO);
}

}  // namespace

void write_output(const std::string& thing, const std::string& path, const std::string& text) {
  if (const std::string why = written(path, text); !why.empty()) {
    fail_input({.thing = thing,
                .wrong = fmt::format("cannot write {}: {}", path, why),
                .advice = "name a file in a folder that exists, is writable and has room"});
  }
}

void write_text(const std::string& path, const std::string& text) {
  if (const std::string why = written(path, text + "\n"); !why.empty()) {
    fail({.thing = path, .wrong = "cannot be written: " + why});
  }
}

}  // namespace tessera::app
