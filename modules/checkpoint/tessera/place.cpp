module;
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import :mapped_file;
import :checkpoint_index;
import :place;

namespace tessera::checkpoint_detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view removed_mark = ".tmp-removed";

std::string remains(const std::string& path, const std::string& problem) {
  return problem.empty() ? std::string() : fmt::format("'{}' ({})", path, problem);
}

/// Whether the folder has only files that a save writes: nothing else is ever removed.
bool holds_only_a_save(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error) || !is_of_save(entry.path().filename().string())) {
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
      remove_folder(entry.path().string(), is_of_save);  // where it cannot be, the next save tries
    }
  }
}

std::string make_temporary(const std::string& folder) {
  static std::atomic<int> count{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const fs::path clean =
      fs::path(folder).has_filename() ? fs::path(folder) : fs::path(folder).parent_path();
  std::string name = fmt::format("{}.tmp-{:x}-{:x}-{}", clean.string(), ::getpid(), now, ++count);
  std::error_code error;
  if (!fs::create_directory(name, error)) {
    fail({.thing = "checkpoint",
          .wrong = fmt::format("the folder '{}' cannot be made: {}", name,
                               error ? error.message() : "it is there already")});
  }
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

bool is_of_save(const std::string& name) {
  return name == index_name || (name.starts_with("rank-") && name.ends_with(".safetensors") &&
                                name.find('/') == std::string::npos);
}

std::string remove_checkpoint(const std::string& folder) {
  CheckpointIndex index;
  try {
    index = read_index((fs::path(folder) / index_name).string());
  } catch (const Error& error) {
    return remains(folder, fmt::format("which files are its own is not known: {}", error.what()));
  }
  const auto own = [&](const std::string& name) {
    return name == index_name || index.files.contains(name);
  };
  if (std::string problem = why_not_removable(folder, own); !problem.empty()) {
    return remains(folder, problem);
  }
  std::error_code error;
  std::string doomed = folder + std::string(removed_mark);
  for (int more = 2; fs::exists(fs::symlink_status(doomed, error)); ++more) {
    doomed = fmt::format("{}{}-{}", folder, removed_mark, more);
  }
  fs::rename(folder, doomed, error);
  return error ? remains(folder, error.message()) : remains(doomed, remove_folder(doomed, own));
}

std::vector<std::string> complete_removals(const std::string& folder) {
  std::vector<std::string> remaining;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().find(removed_mark) == std::string::npos) {
      continue;
    }
    const std::string path = entry.path().string();
    if (std::string problem = remains(path, remove_folder(path, is_of_save)); !problem.empty()) {
      remaining.push_back(std::move(problem));
    }
  }
  return remaining;
}

void TemporaryFolder::make(const std::string& folder, std::shared_ptr<const HeldFolder> within) {
  const std::string parent = parent_of(folder);
  within_ = std::move(within);
  if (within_) {
    check_checkpoint_folder(*within_);
  } else {
    made_ = make_folders(parent, folder);
  }
  check_target(folder);
  remove_leftovers(parent);
  path_ = make_temporary(folder);
  lock_ = std::make_unique<FileLock>(FileLock::of_folder(path_));
  lock_->take();  // marks it as in use; where the file system has no locks, nobody removes it
}

void TemporaryFolder::put_in_place(const std::string& folder) {
  sync_folder(path_);
  if (within_) {
    check_checkpoint_folder(*within_);
  }
  checkpoint_detail::put_in_place(path_, folder);
  path_.clear();
  made_.clear();
}

TemporaryFolder::~TemporaryFolder() {
  if (!path_.empty()) {
    remove_folder(path_, is_of_save);
  }
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
    ::rmdir(folder->c_str());  // refuses where something is in it
  }
}

}  // namespace tessera::checkpoint_detail
