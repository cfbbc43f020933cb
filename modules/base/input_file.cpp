// Plain headers whose functions throw the error of this module.
module;
#include "tessera/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <string>
#include <system_error>

#include "tessera/json_reading.hpp"
module tessera.base;

import :error;

namespace tessera {
namespace {

/// Closes it at the end.
struct OpenFile {
  int number;
  ~OpenFile() {
    if (number >= 0) {
      ::close(number);
    }
  }
};

[[noreturn]] void cannot_read(const std::string& path, const std::string& what, int error) {
  fail_input({.thing = path,
              .wrong = what + " cannot be read (" + std::generic_category().message(error) + ")"});
}

[[noreturn]] void too_large(const std::string& path, std::size_t most) {
  fail_input({.thing = path,
              .wrong = "the file is too large",
              .expected = "at most " + std::to_string(most) + " bytes",
              .got = "more"});
}

}  // namespace

extern "C++" {

std::string input_text(const std::string& path, std::size_t most, const std::string& what) {
  // Without waiting: nobody may ever write to a named pipe.
  const OpenFile file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat about{};
  if (file.number < 0 || ::fstat(file.number, &about) != 0 ||
      ::fcntl(file.number, F_SETFL, 0) != 0) {
    cannot_read(path, what, errno);
  }
  if (S_ISREG(about.st_mode) && static_cast<std::size_t>(about.st_size) > most) {
    too_large(path, most);
  }
  std::string text;
  constexpr std::size_t block = std::size_t{1} << 20;
  while (true) {
    const std::size_t before = text.size();
    text.resize(before + block);
    const ssize_t count = ::read(file.number, text.data() + before, block);
    text.resize(before + static_cast<std::size_t>(count > 0 ? count : 0));
    if (count < 0 && errno != EINTR) {
      cannot_read(path, what, errno);
    }
    if (text.size() > most) {
      too_large(path, most);
    }
    if (count == 0) {
      return text;
    }
  }
}

bool next_line(std::istream& stream, const std::string& path, std::string& line, std::size_t most) {
  line.clear();
  std::streambuf* const from = stream.rdbuf();
  bool any = false;
  try {
    for (int c = from->sbumpc(); c != std::istream::traits_type::eof(); c = from->sbumpc()) {
      any = true;
      if (c == '\n') {
        return true;
      }
      if (line.size() == most) {
        fail_input({.thing = path,
                    .wrong = "a line is too long",
                    .expected = "at most " + std::to_string(most) + " bytes",
                    .got = "more"});
      }
      line += static_cast<char>(c);
    }
  } catch (const std::ios_base::failure&) {  // a folder
    any = false;
  }
  stream.setstate(any ? std::ios::eofbit : std::ios::eofbit | std::ios::failbit);
  return any;
}

void refuse_json(const std::string& where, const std::string& problem, const std::string& advice) {
  fail_input(
      {.thing = where, .wrong = "it has another form than expected: " + problem, .advice = advice});
}

}  // extern "C++"

}  // namespace tessera
