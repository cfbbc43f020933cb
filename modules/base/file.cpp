module;
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/descriptor.hpp>
#include <tessera/limits.hpp>
#include <utility>
module tessera.base;

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Parts = std::span<const std::string_view>;

std::string reason(int error = errno) { return reason_of(error); }

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Whether the link is in /proc: its text is then no path.
bool is_in_proc(const fs::path& link) {
  struct statfs system{};
  return ::statfs(parent_of(link).c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

bool write_all(int file, Parts parts) {
  for (std::string_view part : parts) {
    while (!part.empty()) {
      const ssize_t done = ::write(file, part.data(), part.size());
      if (done < 0 && errno != EINTR) {
        return false;
      }
      part.remove_prefix(done > 0 ? static_cast<std::size_t>(done) : 0);
    }
  }
  return true;
}

/// File systems without this call have nothing to wait for.
bool on_disk(int file) { return ::fsync(file) == 0 || errno == EINVAL || errno == EROFS; }

/// For what cannot be replaced: a stream, a file with several names, one whose folder or owner is
/// somebody else's. The room for a file is reserved first, so that it is not half written.
std::string written_in_place(const std::string& path, Parts parts) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.is_open()) {
    return errno == ENXIO ? "nobody reads it" : reason();
  }
  struct stat there{};
  if (::fstat(file.value(), &there) != 0) {
    return reason();
  }
  if (!S_ISREG(there.st_mode)) {
    ::fcntl(file.value(), F_SETFL, 0);  // a reader may take its time
    return write_all(file.value(), parts) ? std::string() : reason();
  }
  off_t size = 0;
  for (const std::string_view part : parts) {
    size += static_cast<off_t>(part.size());
  }
  if (size > 0 && ::fallocate(file.value(), 0, 0, size) != 0 && errno != EOPNOTSUPP) {
    const std::string why = reason();
    [[maybe_unused]] const int ignored = ::ftruncate(file.value(), there.st_size);
    return why;
  }
  return write_all(file.value(), parts) && ::ftruncate(file.value(), size) == 0 &&
                 on_disk(file.value()) && file.close()
             ? std::string()
             : reason();
}

/// A file without a name of its own: it goes with the object unless it has got one.
class UnnamedFile {
 public:
  explicit UnnamedFile(const fs::path& folder) {
    static std::atomic<int> count{0};
    do {
      path_ = folder / (".tessera-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
      descriptor_ =
          ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
  }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  ~UnnamedFile() {
    const int error = errno;
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
    if (!path_.empty()) {
      ::unlink(path_.c_str());
    }
    errno = error;
  }
  int descriptor() const { return descriptor_; }
  bool take_mode(const struct stat& of) const {
    struct stat own{};
    const bool owned =
        ::fstat(descriptor_, &own) == 0 && own.st_uid == of.st_uid && own.st_gid == of.st_gid;
    return (owned || ::fchown(descriptor_, of.st_uid, of.st_gid) == 0) &&
           ::fchmod(descriptor_, of.st_mode & 07777) == 0;
  }
  bool name(const std::string& place) {
    if (!on_disk(descriptor_) || ::close(std::exchange(descriptor_, -1)) != 0 ||
        ::rename(path_.c_str(), place.c_str()) != 0) {
      return false;
    }
    path_.clear();
    return true;
  }

 private:
  fs::path path_;
  int descriptor_ = -1;
};

}  // namespace

std::string output_place(const std::string& path) {
  fs::path place = path;
  std::error_code error;
  for (int links = 0; links < 40; ++links) {
    if (!fs::is_symlink(fs::symlink_status(place, error)) || is_in_proc(place)) {
      return place.string();
    }
    const fs::path target = fs::read_symlink(place, error);
    if (error) {
      return place.string();
    }
    place = target.is_absolute() ? target : place.parent_path() / target;
  }
  return path;
}

bool is_stream(const std::string& path) {
  struct stat there{};
  struct stat named{};
  return ::stat(path.c_str(), &there) == 0 && !S_ISDIR(there.st_mode) &&
         (!S_ISREG(there.st_mode) ||
          (::lstat(output_place(path).c_str(), &named) == 0 && S_ISLNK(named.st_mode)));
}

std::string write_file(const std::string& path, std::string_view bytes) {
  return write_file(path, Parts(&bytes, 1));
}

std::string write_file(const std::string& path, std::span<const std::string_view> parts) {
  struct stat there{};
  const bool exists = ::stat(path.c_str(), &there) == 0;
  if (!exists && errno != ENOENT) {
    return reason();
  }
  if (exists) {
    if (S_ISDIR(there.st_mode)) {
      return reason(EISDIR);
    }
    if (::access(path.c_str(), W_OK) != 0) {
      return reason();
    }
    if (is_stream(path) || there.st_nlink > 1) {
      return written_in_place(path, parts);
    }
  }
  const std::string place = output_place(path);
  UnnamedFile fresh(parent_of(place));
  if (fresh.descriptor() < 0) {
    const int error = errno;
    return exists && (error == EACCES || error == EPERM || error == ENAMETOOLONG)
               ? written_in_place(path, parts)
               : reason(error);
  }
  if (exists && !fresh.take_mode(there)) {
    return written_in_place(path, parts);
  }
  return write_all(fresh.descriptor(), parts) && fresh.name(place) ? std::string() : reason();
}

}  // namespace tessera
