#include "data/text_files.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <string_view>
#include <tessera/shown.hpp>

import tessera.base;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t inspected = 64 * 1024;  // git inspects 8,000 bytes

class Finder {
 public:
  void add_name(const std::string& name) {
    std::error_code error;
    if (fs::exists(name, error)) {
      add_path(name);
      return;
    }
    if (name.find_first_of("*?[") == std::string::npos) {
      problem(name, "no such file or folder");
      return;
    }
    glob_t found{};
    if (::glob(name.c_str(), 0, nullptr, &found) != 0 || found.gl_pathc == 0) {
      problem(name, "the pattern matches no file or folder");
    }
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      add_path(found.gl_pathv[i]);
    }
    ::globfree(&found);
  }

  std::vector<fs::path> finish() {
    if (problems_.size() == 1) {
      fail_input("data.text: " + problems_[0]);
    }
    if (!problems_.empty()) {
      std::string text = fmt::format("data.text: {} problems", problems_.size());
      for (const std::string& problem : problems_) {
        text += "\n  " + problem;
      }
      fail_input(text);
    }
    return std::move(files_);
  }

 private:
  void problem(const fs::path& path, std::string_view text) {
    problems_.push_back(fmt::format("{}: {}", shown(path.string()), text));
  }

  void add_path(const fs::path& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      add_file(path, false);
      return;
    }
    std::vector<fs::path> inside;
    fs::recursive_directory_iterator entry(path, error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      if (entry->path().filename().string().starts_with('.')) {
        entry.disable_recursion_pending();
      } else if (std::error_code ignored; entry->is_regular_file(ignored)) {
        inside.push_back(entry->path());
      }
    }
    if (error) {
      problem(path, "the folder cannot be read: " + error.message());
      return;
    }
    std::ranges::sort(inside);
    const std::size_t before = seen_.size();
    bool repeated = false;
    for (const fs::path& file : inside) {
      repeated = !add_file(file, true) || repeated;
    }
    if (seen_.size() == before && !repeated) {
      problem(path, "the folder holds no text (hidden and empty files are ignored)");
    }
  }

  /// Returns false if the file was there already.
  bool add_file(const fs::path& file, bool in_folder) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) {
      problem(file, "is not a regular file");
      return true;
    }
    if (fs::file_size(file, error) == 0) {
      if (!in_folder) {
        problem(file, "is empty");
      }
      return true;
    }
    if (!seen_.insert(fs::canonical(file, error)).second) {
      return false;
    }
    std::ifstream stream(file, std::ios::binary);
    std::array<char, inspected> head{};
    if (!stream || (stream.read(head.data(), head.size()), stream.bad())) {
      problem(file, "cannot be read; check its permissions");
      return true;
    }
    const std::string_view text(head.data(), static_cast<std::size_t>(stream.gcount()));
    if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
      problem(file, fmt::format("is not text: byte {} is zero; name only text files", zero));
    }
    files_.push_back(file);
    return true;
  }

  std::vector<fs::path> files_;
  std::set<fs::path> seen_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<fs::path> find_text_files(std::span<const std::string> names) {
  Finder finder;
  for (const std::string& name : names) {
    finder.add_name(name);
  }
  return finder.finish();
}

}  // namespace tessera::app
