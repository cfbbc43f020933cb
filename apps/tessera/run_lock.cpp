#include "run_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string_view>
#include <utility>

import tessera.base;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&time, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

std::string self() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}, since {}", ::getpid(), host.data(), now());
}

/// Who wrote the lock file; others may be writing it at this moment.
std::string holder(int descriptor) {
  std::array<char, 400> text{};
  const ssize_t count = ::pread(descriptor, text.data(), text.size(), 0);
  const std::string_view line(text.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  return line.ends_with('\n') ? std::string(line.substr(0, line.find('\n'))) : "another process";
}

/// Whether the file that is open is still the one of that name: a run that ends removes its own.
bool is_current(int descriptor, const fs::path& file) {
  struct stat open{};
  struct stat named{};
  return ::fstat(descriptor, &open) == 0 && ::stat(file.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

RunLock::RunLock(const Config& config) : owner_(::getpid()) {
  try {
    if (!config.checkpoint.folder.empty()) {
      take("checkpoint.folder", fs::path(config.checkpoint.folder) / ".lock");
    }
    const fs::path metrics = output_place(config.log.metrics);
    if (!metrics.empty() && !is_stream(config.log.metrics)) {
      take("log.metrics",
           metrics.parent_path() / fmt::format(".{}.lock", metrics.filename().string()));
    }
  } catch (...) {
    release();
    throw;
  }
}

RunLock::~RunLock() { release(); }

void RunLock::take(const char* key, const fs::path& file) {
  for (std::string& folder : make_folders(fs::absolute(file).parent_path().string(), key)) {
    made_.emplace_back(std::move(folder));
  }
  while (true) {
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor < 0) {
      fail_input({.thing = key,
                  .wrong = fmt::format("the lock file {} cannot be opened ({})", file.string(),
                                       std::strerror(errno)),
                  .advice = "choose another path"});
    }
    const int code = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (code == EWOULDBLOCK) {
      const std::string who = holder(descriptor);
      ::close(descriptor);
      fail_input({.thing = key,
                  .wrong = fmt::format("another run is writing {} ({})",
                                       fs::absolute(file).parent_path().string(), who),
                  .advice = "wait for its end, or choose another path"});
    }
    if (code != 0) {
      log(LogLevel::warning,
          fmt::format("{}: {} cannot be locked ({}); make sure that no other run writes there", key,
                      file.string(), std::strerror(code)));
    }
    if (is_current(descriptor, file)) {
      held_.push_back({file, descriptor});
      const std::string text = self() + "\n";
      if (::ftruncate(descriptor, 0) != 0 ||
          ::pwrite(descriptor, text.data(), text.size(), 0) != std::ssize(text)) {
        log(LogLevel::warning,
            fmt::format("{}: {} cannot be written ({})", key, file.string(), std::strerror(errno)));
      }
      return;
    }
    ::close(descriptor);
  }
}

void RunLock::leave_to_owner() {
  if (::getpid() == owner_) {
    return;
  }
  for (const Held& held : held_) {
    ::close(held.descriptor);  // the owner's own descriptor keeps the lock
  }
  held_.clear();
  made_.clear();
}

void RunLock::release() {
  if (::getpid() == owner_) {
    for (const Held& held : held_) {
      // While the lock is held nobody else can hold this file. Where the folder was moved, the name
      // is another run's.
      if (is_current(held.descriptor, held.file)) {
        ::unlink(held.file.c_str());
      }
      ::close(held.descriptor);
    }
    for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
      ::rmdir(folder->c_str());  // refuses where something is in it
    }
  }
  held_.clear();
  made_.clear();
}

}  // namespace tessera::app
