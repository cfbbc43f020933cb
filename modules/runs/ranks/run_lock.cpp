module;
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.stores;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;

}  // namespace

RunLock::RunLock(const RunSpec& config) : owner_(::getpid()) {
  try {
    // A store has no locks: attempts to save have names of their own there.
    if (!config.checkpoint.folder.empty() && !stores::is_address(config.checkpoint.folder)) {
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
  FileLock lock = FileLock::of_file(file.string(), 0666);
  switch (lock.take()) {
    case FileLock::State::unusable:
      fail_input({.thing = key,
                  .wrong = fmt::format("the lock file {} cannot be opened ({})", file.string(),
                                       lock.problem()),
                  .advice = "choose another path"});
    case FileLock::State::busy:
      fail_input({.thing = key,
                  .wrong = fmt::format("another run is writing {} ({})",
                                       fs::absolute(file).parent_path().string(), lock.holder()),
                  .advice = "wait for its end, or choose another path"});
    case FileLock::State::unsupported:
      log(LogLevel::warning,
          fmt::format("{}: {} cannot be locked ({}); make sure that no other run writes there", key,
                      file.string(), lock.problem()));
      ::unlink(file.c_str());
      return;
    case FileLock::State::free:
    case FileLock::State::held:
      break;
  }
  if (const std::string why = lock.sign(); !why.empty()) {
    log(LogLevel::warning, fmt::format("{}: {} cannot be written ({})", key, file.string(), why));
  }
  held_.push_back(std::move(lock));
}

void RunLock::leave_to_owner() {
  if (::getpid() == owner_) {
    return;
  }
  held_.clear();  // the owner's own descriptors keep the locks
  made_.clear();
}

void RunLock::release() {
  if (::getpid() == owner_) {
    for (FileLock& lock : held_) {
      lock.remove();
    }
    for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
      ::rmdir(folder->c_str());  // refuses where something is in it
    }
  }
  held_.clear();
  made_.clear();
}

}  // namespace tessera::runs
