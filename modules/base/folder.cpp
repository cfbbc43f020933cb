module;
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/limits.hpp>
#include <utility>
#include <vector>
module tessera.base;

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string reason(int error = errno) { return reason_of(error); }

fs::path without_slash(const std::string& folder) {
  const fs::path path(folder);
  return path.has_filename() || !path.has_relative_path() ? path : path.parent_path();
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Returns when a file, or the names in a folder, are on the disk; some file systems cannot say.
/// Returns false when they cannot get there.
bool brought_to_disk(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) {
    return true;
  }
  const bool good = ::fsync(descriptor) == 0 || errno == EINVAL || errno == EROFS;
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return good;
}

/// An entry of a folder, itself and not what a link says.
struct Entry {
  bool is_there = false;
  bool is_file = false;
  bool is_folder = false;
  bool immutable = false;     // or can only be appended to
  std::uint64_t mounted = 0;  // which mount it is of
};

/// Systems before Linux 5.8 say it in /proc only.
std::optional<std::uint64_t> mount_from_proc(int folder, const char* name) {
  const int file = ::openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) {
    return std::nullopt;
  }
  std::ifstream text(fmt::format("/proc/self/fdinfo/{}", file));
  ::close(file);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("mnt_id:")) {
      return std::strtoull(line.c_str() + 7, nullptr, 10);
    }
  }
  return std::nullopt;
}

Entry entry_of(int folder, const char* name) {
  struct statx status{};
  if (::statx(folder, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE | STATX_MNT_ID,
              &status) != 0) {
    return {};
  }
  Entry entry{
      .is_there = true,
      .is_file = S_ISREG(status.stx_mode),
      .is_folder = S_ISDIR(status.stx_mode),
      .immutable = (status.stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND)) != 0,
      .mounted = status.stx_mnt_id};
  if ((status.stx_mask & STATX_MNT_ID) == 0) {
    const std::uint64_t device = (std::uint64_t{status.stx_dev_major} << 32) | status.stx_dev_minor;
    entry.mounted = mount_from_proc(folder, name).value_or(device);
  }
  return entry;
}

/// Content of a folder, of which all is on one mount.
class Content {
 public:
  Content(const std::string& folder, const RemovableFile& removable) : removable_(removable) {
    const fs::path path = without_slash(folder);
    const int parent = ::open(parent_of(path).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    const Entry above = parent < 0 ? Entry() : entry_of(parent, ".");
    const Entry own = parent < 0 ? Entry() : entry_of(parent, path.filename().c_str());
    if (!own.is_there) {
      problem_ = reason();
    } else if (!own.is_folder) {
      problem_ = "it is not a folder, or a link to one";
    } else if (own.mounted != above.mounted) {
      problem_ = "another file system is mounted there";
    } else {
      mounted_ = own.mounted;
      const int opened = ::openat(parent, path.filename().c_str(),
                                  O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      opened < 0 ? stop(reason()) : look(opened, "");
    }
    if (parent >= 0) {
      ::close(parent);
    }
  }

  const std::string& problem() const { return problem_; }
  /// Files before their folders.
  const std::vector<std::pair<std::string, bool>>& removable() const { return found_; }
  /// Something that stays; "" if nothing does.
  const std::string& other() const { return other_; }

 private:
  void stop(const std::string& problem) { problem_ = problem_.empty() ? problem : problem_; }

  /// Closes `folder`, whose path below the first one is `at`.
  void look(int folder, const std::string& at) {
    const std::string named = at.empty() ? "the folder" : at;
    if (::faccessat(folder, ".", W_OK | X_OK, AT_EACCESS) != 0) {
      stop(fmt::format("{} cannot be written ({})", named, reason()));
    } else if (entry_of(folder, ".").immutable) {
      stop(named + " is immutable");
    }
    const std::unique_ptr<DIR, int (*)(DIR*)> list(::fdopendir(folder), &::closedir);
    if (!list) {
      stop(fmt::format("{} cannot be read ({})", named, reason()));
      ::close(folder);
      return;
    }
    while (const dirent* const next = ::readdir(list.get())) {
      const std::string name = next->d_name;
      if (name != "." && name != "..") {
        add(folder, name, at.empty() ? name : fmt::format("{}/{}", at, name));
      }
    }
  }

  void add(int folder, const std::string& name, const std::string& path) {
    const Entry entry = entry_of(folder, name.c_str());
    if (!entry.is_there) {
      return;
    }
    if (entry.mounted != mounted_) {
      stop(fmt::format("another file system is mounted at {}", path));
      return;
    }
    if (entry.is_folder) {
      const int inner =
          ::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      inner < 0 ? stop(fmt::format("{} cannot be read ({})", path, reason())) : look(inner, path);
    }
    if (!removable_(path)) {
      other_ = other_.empty() || path < other_ ? path : other_;
    } else if (entry.is_folder) {
      found_.emplace_back(path, true);
    } else if (!entry.is_file) {
      stop(path + " is not a regular file");
    } else if (entry.immutable) {
      stop(path + " is immutable");
    } else {
      found_.emplace_back(path, false);
    }
  }

  const RemovableFile& removable_;
  std::uint64_t mounted_ = 0;
  std::string problem_;
  std::string other_;
  std::vector<std::pair<std::string, bool>> found_;  // and whether it is a folder
};

}  // namespace

std::vector<std::string> make_folders(const std::string& folder, const std::string& thing) {
  std::vector<std::string> made;
  fs::path path;
  for (const fs::path& part : fs::absolute(folder).lexically_normal()) {
    path /= part;
    std::error_code error;
    if (!part.empty() && fs::create_directory(path, error)) {
      made.push_back(path.string());
    }
    if (error && !fs::is_directory(path)) {
      fail_input({.thing = thing,
                  .wrong = fmt::format("{} cannot be created ({})", path.string(),
                                       reason_of(error.value())),
                  .advice = "choose another path"});
    }
  }
  return made;
}

HeldFolder::HeldFolder(const std::string& folder)
    : path_(folder), descriptor_(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) {
    fail_input({.thing = folder, .wrong = fmt::format("there is no such folder ({})", reason())});
  }
}

HeldFolder::~HeldFolder() { ::close(descriptor_); }

bool HeldFolder::is_lost() const {
  struct stat held{};
  struct stat named{};
  if (::stat(path_.c_str(), &named) != 0) {
    return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
  }
  return ::fstat(descriptor_, &held) == 0 &&
         (held.st_dev != named.st_dev || held.st_ino != named.st_ino);
}

NewFolder::NewFolder(const std::string& folder)
    : folder_(folder), place_(output_place(without_slash(folder).string())) {
  static std::atomic<int> count{0};
  std::error_code error;
  within_ = fs::exists(place_, error);
  if (within_ && (!fs::is_directory(place_, error) || !fs::is_empty(place_, error))) {
    fail_input({.thing = folder,
                .wrong = fs::is_directory(place_, error) ? "the folder is not empty"
                                                         : "it is not a folder",
                .advice = "name a new folder"});
  }
  if (!within_) {
    made_ = make_folders(parent_of(place_).string(), folder);
  }
  int problem = 0;
  do {
    const std::string end = fmt::format(".tmp-{:x}-{}", ::getpid(), ++count);
    path_ = within_ ? (fs::path(place_) / end).string() : place_ + end;
    problem = ::mkdir(path_.c_str(), 0777) == 0 ? 0 : errno;
  } while (problem == EEXIST);
  if (problem != 0) {
    remove_made();
    fail_input({.thing = folder,
                .wrong = fmt::format("the folder cannot be created ({})", reason(problem)),
                .advice = "name another folder"});
  }
}

NewFolder::~NewFolder() {
  if (path_.empty()) {
    return;
  }
  remove_folder(path_, [](const std::string&) { return true; });
  remove_made();
}

void NewFolder::remove_made() {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
    ::rmdir(folder->c_str());  // refuses where something is in it
  }
  made_.clear();
}

void NewFolder::complete() {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path_)) {
    if (!brought_to_disk(entry.path())) {
      fail({.thing = folder_,
            .wrong = fmt::format("{} cannot be brought to the disk ({})",
                                 entry.path().filename().string(), reason()),
            .advice = "make room there or write elsewhere"});
    }
  }
  brought_to_disk(path_);
  if (within_) {
    move_up();
  } else if (::rename(path_.c_str(), place_.c_str()) != 0) {
    fail({.thing = folder_,
          .wrong = fmt::format("the folder cannot get its name ({})", reason()),
          .advice = "name a new folder"});
  }
  path_.clear();
  brought_to_disk(place_);
  brought_to_disk(parent_of(place_));
}

/// The files get their places one after the other; all of them, or none.
void NewFolder::move_up() {
  std::vector<fs::path> moved;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    const fs::path to = fs::path(place_) / entry.path().filename();
    if (fs::exists(fs::symlink_status(to, error))) {
      error = std::make_error_code(std::errc::file_exists);
    } else {
      fs::rename(entry.path(), to, error);
    }
    if (error) {
      break;
    }
    moved.push_back(to);
  }
  if (error) {
    for (const fs::path& file : moved) {
      std::error_code ignored;
      fs::rename(file, fs::path(path_) / file.filename(), ignored);
    }
    fail({.thing = folder_,
          .wrong = fmt::format("the folder cannot be filled ({})", reason_of(error.value())),
          .advice = "name a new folder"});
  }
  ::rmdir(path_.c_str());
}

std::string why_not_removable(const std::string& folder, const RemovableFile& removable) {
  return Content(folder, removable).problem();
}

std::string remove_folder(const std::string& folder, const RemovableFile& removable) {
  const Content content(folder, removable);
  if (!content.problem().empty()) {
    return content.problem();
  }
  const fs::path path = without_slash(folder);
  const int opened = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  std::string problem = opened < 0 ? reason() : "";
  for (const auto& [name, is_folder] : content.removable()) {
    // In a folder that held something else, or that NFS has renamed a file in, it is not empty.
    if (problem.empty() && ::unlinkat(opened, name.c_str(), is_folder ? AT_REMOVEDIR : 0) != 0 &&
        errno != ENOENT && !(is_folder && (errno == ENOTEMPTY || errno == EEXIST))) {
      problem = fmt::format("{}: {}", name, reason());
    }
  }
  if (opened >= 0) {
    ::close(opened);
  }
  if (problem.empty() && ::rmdir(path.c_str()) != 0) {
    problem = content.other().empty()
                  ? reason()
                  : fmt::format("{} is in it, which is not one of its files", content.other());
  }
  return problem;
}

}  // namespace tessera
