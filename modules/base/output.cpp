module;
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/input_file.hpp>
#include <tessera/limits.hpp>
#include <utility>
module tessera.base;

namespace tessera {
namespace {

[[noreturn]] void fail_stdout(int error) {
  const std::string why = error == 0 ? "an earlier write failed" : reason_of(error);
  fail({.thing = "stdout",
        .wrong = fmt::format("not everything could be written ({})", why),
        .advice = "make room, or send the output elsewhere"});
}

}  // namespace

std::string read_input(const std::string& path) {
  std::string text = input_text(path);
  if (text.empty()) {
    fail_input({.thing = path, .wrong = "the file is empty"});
  }
  return text;
}

void write_output(const std::string& thing, const std::string& path, const std::string& text) {
  if (const std::string why = write_file(path, text); !why.empty()) {
    fail_input({.thing = thing,
                .wrong = fmt::format("cannot write {}: {}", path, why),
                .advice = "name a file in a folder that exists, is writable and has room"});
  }
}

void write_folder(const std::string& folder,
                  const std::function<void(const std::filesystem::path&)>& write) {
  NewFolder made(folder);
  try {
    write(made.path());
  } catch (const std::filesystem::filesystem_error& problem) {
    fail({.thing = folder,
          .wrong = fmt::format("cannot be written ({})", problem.code().message()),
          .advice = "make room there or write elsewhere"});
  }
  made.complete();
}

void print_progress(std::string_view text) {
  try_side_work(SideWork::output, "stdout", [&] {
    errno = 0;
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if ((!written || std::fflush(stdout) != 0) && errno != EPIPE) {  // that is a request to stop
      fail_stdout(errno);
    }
  });
}

void check_stdout(int error) {
  const bool flushed = std::fflush(stdout) == 0;
  error = flushed ? error : errno;
  if (!flushed || std::ferror(stdout) != 0) {
    fail_stdout(error);
  }
}

void write_text(const std::string& path, const std::string& text) {
  if (const std::string why = write_file(path, text + "\n"); !why.empty()) {
    fail({.thing = path, .wrong = "cannot be written: " + why});
  }
}

}  // namespace tessera
