module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <tessera/limits.hpp>
#include <tessera/shown.hpp>
#include <utility>
module tessera.runs;

import tessera.base;
import tessera.sources;
import tessera.data;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t inspected = 8000;  // as many as git

/// The folders that glob could not read; its callback has no argument of ours.
std::vector<std::pair<std::string, int>> unreadable;
int note_unreadable(const char* folder, int error) {
  unreadable.emplace_back(folder, error);
  return 0;
}

bool is_of_source(const fs::path& file) {
  return !sources::source_of(file.string()).empty() ||
         !sources::missing_source(file.string()).empty();
}

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
    unreadable.clear();
    const int code = ::glob(name.c_str(), 0, note_unreadable, &found);
    for (const auto& [folder, why] : unreadable) {
      problem(folder, "the folder cannot be read: " + reason_of(why));
    }
    if (code != 0 || found.gl_pathc == 0) {
      problem(name, "the pattern matches no file or folder");
    }
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      add_path(found.gl_pathv[i]);
    }
    ::globfree(&found);
  }

  TextFiles finish() {
    if (problems_.size() == 1) {
      fail_input(problems_[0]);
    }
    if (!problems_.empty()) {
      std::string text = fmt::format("{} problems", problems_.size());
      for (const std::string& problem : problems_) {
        text += "\n  " + problem;
      }
      fail_input(text);
    }
    return {std::move(files_), left_out()};
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
    const std::size_t problems = problems_.size();
    FolderContents below;
    walk(path, below);
    // Folders themselves come before links to them: those change nothing then.
    for (std::size_t i = 0; i < below.links.size(); ++i) {
      walk(fs::path(below.links[i]), below);
    }
    std::ranges::sort(below.files);
    leave_out_descriptions(below.files);
    const std::size_t before = seen_.size();
    bool repeated = false;
    for (const fs::path& file : below.files) {
      repeated = !add_file(file, true) || repeated;
    }
    if (seen_.size() == before && !repeated && problems_.size() == problems) {
      problem(path, "the folder holds no text (hidden and empty files are ignored)");
    }
  }

  using Kind = std::pair<std::string, std::string>;  // one, several

  struct FolderContents {
    std::vector<fs::path> files;
    std::vector<fs::path> links;  // to folders
    std::set<std::pair<std::uint64_t, std::uint64_t>> entered;
  };

  /// All below a folder, unless it was entered before.
  void walk(const fs::path& folder, FolderContents& below) {
    struct stat own{};
    std::error_code error;
    if (::stat(folder.c_str(), &own) == 0 &&
        !below.entered.emplace(own.st_dev, own.st_ino).second) {
      return;
    }
    std::vector<fs::path> entries;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      entries.push_back(entry->path());
    }
    if (error) {
      problem(folder, "the folder cannot be read: " + reason_of(error.value()));
      return;
    }
    std::ranges::sort(entries);
    for (const fs::path& path : entries) {
      sort_out(path, below);
    }
  }

  void sort_out(const fs::path& path, FolderContents& below) {
    if (path.filename().string().starts_with('.')) {
      ++hidden_;
      return;
    }
    std::error_code error;
    const bool is_link = fs::is_symlink(fs::symlink_status(path, error));
    switch (fs::status(path, error).type()) {
      case fs::file_type::regular:
        below.files.push_back(path);
        break;
      case fs::file_type::directory:
        is_link ? below.links.push_back(path) : walk(path, below);
        break;
      case fs::file_type::fifo:
        skipped_[{"pipe", "pipes"}].push_back(path);
        break;
      case fs::file_type::socket:
        skipped_[{"socket", "sockets"}].push_back(path);
        break;
      default:
        skipped_[is_link && !fs::exists(path, error)
                     ? Kind("link that leads nowhere", "links that lead nowhere")
                     : Kind("device", "devices")]
            .push_back(path);
    }
  }

  /// Of a folder with files that a source reads, such as one of datasets: files that are neither
  /// these nor JSON lines describe it.
  void leave_out_descriptions(std::vector<fs::path>& files) {
    if (std::ranges::none_of(files, [](const fs::path& file) { return is_of_source(file); })) {
      return;
    }
    const auto [first, last] = std::ranges::stable_partition(files, [](const fs::path& file) {
      const std::string name = file.string();
      return is_of_source(file) || name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") ||
             name.ends_with(".jsonl.zst");
    });
    auto& skipped = skipped_[{"other file", "other files"}];
    skipped.insert(skipped.end(), first, last);
    files.erase(first, last);
  }

  std::string left_out() const {
    constexpr std::size_t most_named = 3;
    std::vector<std::string> parts;
    for (const auto& [count, what] : {std::pair(hidden_, "hidden"), std::pair(empty_, "empty")}) {
      if (count > 0) {
        parts.push_back(fmt::format("{} {}", count, what));
      }
    }
    for (const auto& [kind, paths] : skipped_) {
      if (paths.empty()) {
        continue;
      }
      std::string names;
      for (std::size_t i = 0; i < std::min(most_named, paths.size()); ++i) {
        names += fmt::format("{}{}", i == 0 ? "" : ", ", paths[i].string());
      }
      parts.push_back(fmt::format("{} {} ({}{})", paths.size(),
                                  paths.size() == 1 ? kind.first : kind.second, names,
                                  paths.size() > most_named ? ", ..." : ""));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
  }

  /// Returns false if the file was there already.
  bool add_file(const fs::path& file, bool in_folder) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) {
      problem(file, "is not a regular file");
      return true;
    }
    std::string head;
    try {
      head = data::first_bytes(file.string(), inspected);
    } catch (const Error& cause) {
      problems_.emplace_back(cause.what());
      return true;
    }
    if (head.empty()) {
      if (in_folder) {
        ++empty_;
      } else {
        problem(file, "is empty");
      }
      return true;
    }
    if (!seen_.insert(fs::canonical(file, error)).second) {
      return false;
    }
    if (const std::string missing = sources::missing_source(file.string()); !missing.empty()) {
      problem(file, missing);
    } else if (!is_of_source(file)) {
      check_head(file, head);
    }
    files_.push_back(file);
    return true;
  }

  void check_head(const fs::path& file, std::string_view head) {
    if (head.starts_with("\x1f\x8b")) {
      problem(file, "is compressed by gzip; end its name with .gz");
    } else if (head.starts_with("\x28\xb5\x2f\xfd")) {
      problem(file, "is compressed by zstd; end its name with .zst");
    } else if (const std::size_t zero = head.find('\0'); zero != std::string_view::npos) {
      problem(file, fmt::format("is not text: byte {} is zero; name only text files", zero));
    }
  }

  std::vector<fs::path> files_;
  std::set<fs::path> seen_;
  std::vector<std::string> problems_;
  std::size_t hidden_ = 0;
  std::size_t empty_ = 0;
  std::map<Kind, std::vector<fs::path>> skipped_;
};

}  // namespace

TextFiles find_text_files(std::span<const std::string> names) {
  Finder finder;
  for (const std::string& name : names) {
    finder.add_name(name);
  }
  return finder.finish();
}

}  // namespace tessera::runs
