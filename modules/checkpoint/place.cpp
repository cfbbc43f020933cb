module;
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
module tessera.checkpoint;

import tessera.base;
import :file;
import :index;
import :place;

namespace tessera::checkpoint_detail {
namespace {

namespace fs = std::filesystem;

/// Whether the folder has only files that a save writes: nothing else is ever removed.
bool holds_only_a_save(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file(error) ||
        (name != index_name && !(name.starts_with("rank-") && name.ends_with(".safetensors")))) {
      return false;
    }
  }
  return !error;
}

/// Removes what crashed saves have left beside the folder; a save in progress holds the
/// lock of its own folder.
void remove_leftovers(const std::string& parent) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    if (entry.path().filename().string().find(".tmp-") == std::string::npos ||
        entry.is_symlink(error) || !entry.is_directory(error)) {
      continue;
    }
    FileLock lock = FileLock::of_folder(entry.path().string());
    if (lock.take() == FileLock::State::held && holds_only_a_save(entry.path())) {
      fs::remove_all(entry.path(), error);
    }
  }
}

std::string make_temporary(const std::string& folder) {
  static std::atomic<int> count{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const fs::path clean =
      fs::path(folder).has_filename() ? fs::path(folder) : fs::path(folder).parent_path();
  std::string name = fmt::format("{}.tmp-{:x}-{:x}-{}", clean.string(), ::getpid(), now, ++count);
  fs::create_directory(name);
  return name;
}

void check_target(const std::string& folder) {
  std::error_code ignored;
  if (fs::exists(folder, ignored) && !fs::is_empty(folder, ignored) &&
      !(fs::is_directory(folder, ignored) && fs::exists(fs::path(folder) / index_name, ignored))) {
    fail_input({.thing = "checkpoint",
                .wrong = fmt::format("'{}' exists and is not a checkpoint", folder),
                .advice = "save elsewhere or remove it"});
  }
}

}  // namespace

void TemporaryFolder::make(const std::string& folder) {
  const std::string parent = parent_of(folder);
  fs::create_directories(parent);
  check_target(folder);
  remove_leftovers(parent);
  path_ = make_temporary(folder);
  lock_ = std::make_unique<FileLock>(FileLock::of_folder(path_));
  lock_->take();  // marks it as in use; where the file system has no locks, nobody removes it
}

void TemporaryFolder::put_in_place(const std::string& folder) {
  sync_folder(path_);
  checkpoint_detail::put_in_place(path_, folder);
  path_.clear();
}

TemporaryFolder::~TemporaryFolder() {
  if (!path_.empty()) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
}

}  // namespace tessera::checkpoint_detail
