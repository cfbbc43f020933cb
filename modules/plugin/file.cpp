module;
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>
module tessera.plugin;

namespace tessera::plugin {
namespace {

constexpr std::uint64_t largest_library = std::uint64_t{2} << 30;

std::shared_ptr<int> own(int descriptor) {
  return {new int(descriptor), [](int* d) {
            if (*d >= 0) {
              close(*d);
            }
            delete d;
          }};
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_in_folder(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool foreign_owner(const struct stat& status) {
  return status.st_uid != 0 && status.st_uid != geteuid();
}

bool foreign_writers(const struct stat& status) {
  return (status.st_mode & S_IWOTH) != 0 ||
         ((status.st_mode & S_IWGRP) != 0 && status.st_gid != 0 && status.st_gid != getegid());
}

/// Who else than root and this user could change it?
void check_ownership(const char* what, const std::string& path, const struct stat& status,
                     std::vector<std::string>& refusals) {
  if (foreign_owner(status)) {
    refusals.push_back(fmt::format(
        "{} {} belongs to user {}, who is neither root nor you; mend it with: chown {} '{}'", what,
        path, status.st_uid, geteuid(), path));
  }
  if (foreign_writers(status)) {
    refusals.push_back(
        fmt::format("{} {} can be written by others (mode {:o}, group {}); mend it with: chmod "
                    "go-w '{}'",
                    what, path, status.st_mode & 07777U, status.st_gid, path));
  }
}

FileIdentity identity_from(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

bool read_all(int descriptor, std::vector<std::byte>& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(descriptor, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return false;
    }
    done += static_cast<std::size_t>(got);
  }
  return true;
}

/// Whether somebody else could exchange one of the folders above `path`. A sticky folder is safe
/// here: only the owner renames what lies in it.
bool safe_above(std::string path) {
  while (path != "/") {
    path = folder_of(path);
    struct stat status{};
    if (lstat(path.c_str(), &status) != 0 || foreign_owner(status) ||
        (foreign_writers(status) && (status.st_mode & S_ISVTX) == 0)) {
      return false;
    }
  }
  return true;
}

}  // namespace

LibraryFile read_library_file(const std::string& path) {
  LibraryFile file;
  file.path = path;
  const auto refuse = [&](std::string why) {
    file.refusals.push_back(std::move(why));
    return file;
  };
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) {
    return refuse(fmt::format("cannot be found: {}", std::strerror(errno)));
  }
  file.path = resolved;
  const std::string folder = folder_of(file.path);
  file.folder = own(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // O_NONBLOCK: a pipe in a plugin's place must not hold us; O_NOFOLLOW: links are resolved.
  const std::shared_ptr<int> opened = own(openat(*file.folder, name_in_folder(file.path).c_str(),
                                                 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat folder_status{};
  struct stat status{};
  if (*file.folder < 0 || *opened < 0 || fstat(*file.folder, &folder_status) != 0 ||
      fstat(*opened, &status) != 0) {
    return refuse(fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return refuse("is not a plain file");
  }
  check_ownership("the file", file.path, status, file.refusals);
  check_ownership("its folder", folder, folder_status, file.refusals);
  file.identity = identity_from(status);
  if (file.identity.size > largest_library) {
    return refuse(fmt::format("is larger than {} bytes", largest_library));
  }
  file.bytes.resize(file.identity.size);
  if (!read_all(*opened, file.bytes)) {
    return refuse("changed while it was read");
  }
  return file;
}

std::string loadable_path(const LibraryFile& file) {
  if (safe_above(folder_of(file.path))) {
    return file.path;
  }
  return fmt::format("/proc/self/fd/{}/{}", *file.folder, name_in_folder(file.path));
}

FileIdentity identity_of(const std::string& path) {
  struct stat status{};
  return stat(path.c_str(), &status) == 0 ? identity_from(status) : FileIdentity{};
}

}  // namespace tessera::plugin
