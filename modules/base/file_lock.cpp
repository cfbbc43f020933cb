module;
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <tessera/limits.hpp>
#include <utility>
module tessera.base;

namespace tessera {
namespace {

std::string self() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 32> since{};
  std::strftime(since.data(), since.size(), "%Y-%m-%d %H:%M:%S", &parts);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}, since {}", ::getpid(), host.data(), since.data());
}

/// Who wrote the lock file; others may be writing it at this moment.
std::string signature(int descriptor) {
  std::array<char, 400> text{};
  const ssize_t count = ::pread(descriptor, text.data(), text.size(), 0);
  const std::string_view line(text.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  return line.ends_with('\n') ? std::string(line.substr(0, line.find('\n'))) : "another process";
}

/// Whether what is open is still what has that name: a holder that ends may remove its own.
bool is_current(int descriptor, const std::string& path) {
  struct stat open{};
  struct stat named{};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

FileLock FileLock::of_file(std::string path, unsigned mode) {
  return {std::move(path), mode, false};
}
FileLock FileLock::of_folder(std::string path) { return {std::move(path), 0, true}; }

FileLock::FileLock(FileLock&& other) noexcept
    : path_(std::move(other.path_)),
      mode_(other.mode_),
      folder_(other.folder_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      state_(std::exchange(other.state_, State::free)),
      problem_(std::move(other.problem_)),
      holder_(std::move(other.holder_)) {}

FileLock::~FileLock() { leave_to_owner(); }

FileLock::State FileLock::refuse(State state, std::string problem) {
  problem_ = std::move(problem);
  return state_ = state;
}

int FileLock::open_file() {
  // O_NONBLOCK: of a pipe, whose other end nobody has, the open would wait.
  const int common = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  return folder_ ? ::open(path_.c_str(), common | O_RDONLY | O_DIRECTORY)
                 : ::open(path_.c_str(), common | O_RDWR | O_CREAT, static_cast<mode_t>(mode_));
}

FileLock::State FileLock::take() {
  while (state_ != State::held) {
    const int descriptor = open_file();
    if (descriptor < 0) {
      const bool link = errno == ELOOP;  // NOFOLLOW; a folder gives ENOTDIR
      return refuse(State::unusable, link ? "it is a symbolic link" : reason_of(errno));
    }
    struct stat status{};
    if (::fstat(descriptor, &status) != 0 || (!folder_ && !S_ISREG(status.st_mode))) {
      ::close(descriptor);
      return refuse(State::unusable, "it is not a plain file");
    }
    if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (error == EWOULDBLOCK) {
        holder_ = folder_ ? "another process" : signature(descriptor);
      }
      ::close(descriptor);
      return error == EWOULDBLOCK ? state_ = State::busy
                                  : refuse(State::unsupported, reason_of(error));
    }
    if (is_current(descriptor, path_)) {
      descriptor_ = descriptor;
      state_ = State::held;
    } else {
      ::close(descriptor);
    }
  }
  return state_;
}

FileLock::State FileLock::take(Patience& patience, std::string_view what, std::string_view then) {
  Pause pause;
  const auto text = [&] { return fmt::format("{}: {} has the lock {}", what, holder_, path_); };
  while (take() == State::busy && patience.look(text, then)) {
    pause.sleep();
  }
  return state_;
}

std::string FileLock::sign() {
  const std::string text = self() + "\n";
  if (::ftruncate(descriptor_, 0) == 0 &&
      ::pwrite(descriptor_, text.data(), text.size(), 0) == std::ssize(text)) {
    return "";
  }
  return reason_of(errno);
}

void FileLock::remove() {
  if (is_held()) {
    // While it is held nobody else can have this file. Where the folder was moved, the name is
    // another process's.
    if (is_current(descriptor_, path_)) {
      ::unlink(path_.c_str());
    }
    leave_to_owner();
  }
}

void FileLock::leave_to_owner() {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));  // an owner's own descriptor keeps the lock
  }
  state_ = State::free;
}

}  // namespace tessera
