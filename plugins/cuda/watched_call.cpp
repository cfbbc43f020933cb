#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tessera/limits.hpp>
#include <tessera/signals.hpp>
#include <thread>
#include <utility>

import tessera.base;
import tessera.device;
import tessera.communication;

#include "watched_call.hpp"

namespace tessera::cuda {

class CallWatch::Pending {
 public:
  void end(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    ended_ = true;
    changed_.notify_all();
  }
  /// Whether it ends within this time.
  bool wait(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [this] { return ended_; });
  }
  /// It has ended. Raises its error.
  void finish() {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::exception_ptr error_;
};

/// A call and its thread, which is left alone where the call has not ended.
class CallWatch::Started {
 public:
  Started(std::shared_ptr<Pending> pending, std::thread thread)
      : pending_(std::move(pending)), thread_(std::move(thread)) {}
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;
  ~Started() {
    if (ended_) {
      thread_.join();  // no thread is left where the process forks
    } else {
      thread_.detach();
    }
  }
  bool wait(std::chrono::milliseconds most) { return ended_ = pending_->wait(most); }
  void finish() { pending_->finish(); }

 private:
  std::shared_ptr<Pending> pending_;
  std::thread thread_;
  bool ended_ = false;
};

namespace {

constexpr std::chrono::milliseconds usual(2), between_looks(20);
constexpr std::chrono::seconds until_aborted(2);
constexpr double reported_after = 10;  // opening a device may take seconds

}  // namespace

CallWatch::CallWatch(std::string thing, std::function<void()> enter)
    : thing_(std::move(thing)),
      enter_(std::move(enter)),
      hangs_(std::make_shared<std::atomic<const char*>>(nullptr)) {}

CallWatch CallWatch::without_ranks(std::string thing) {
  CallWatch watch(std::move(thing));
  watch.alone_ = true;
  return watch;
}

CallWatch::Started CallWatch::start(std::function<void(const WatchedThread&)> function) const {
  const auto pending = std::make_shared<Pending>();
  const ThreadsWithoutSignals quiet;
  return {pending, start_thread("a call of the driver",
                                [pending, enter = enter_, function = std::move(function)] {
                                  std::exception_ptr error;
                                  try {
                                    if (enter) {
                                      enter();
                                    }
                                    function(WatchedThread());
                                  } catch (...) {
                                    error = std::current_exception();
                                  }
                                  pending->end(std::move(error));
                                })};
}

void CallWatch::refuse(double limit) const {
  fail({.thing = thing_,
        .wrong = fmt::format("{} has not returned within {:.4g} s", hangs_->load(), limit),
        .advice = "look at nvidia-smi and the kernel's log (dmesg) for errors of the device; "
                  "TESSERA_TIMEOUT is the limit in seconds"});
}

void CallWatch::run(const char* name, std::function<void(const WatchedThread&)> function) const {
  if (*hangs_ != nullptr) {
    refuse(wait_limit());
  }
  Started call = start(std::move(function));
  if (call.wait(usual)) {
    call.finish();
    return;
  }
  const collective::World* const world = alone_ ? nullptr : &collective::World::current();
  const std::unique_ptr<DeviceWait> others =
      world == nullptr || world->size() == 1 ? nullptr : world->watch_device_wait();
  const auto look = [&] {
    if (others == nullptr) {
      return;
    }
    try {
      others->look();
    } catch (...) {
      call.wait(until_aborted);
      throw;
    }
  };
  Patience patience(wait_limit(), reported_after);
  while (!call.wait(between_looks)) {
    look();
    if (!patience.look([&] { return fmt::format("{}: it waits for {}", thing_, name); })) {
      *hangs_ = name;
      refuse(patience.limit());
    }
  }
  look();  // an error of the world comes before one of the device, which may be its consequence
  call.finish();
}

void CallWatch::give_back(const char* name,
                          std::function<void(const WatchedThread&)> function) const noexcept {
  try {
    run(name, std::move(function));
  } catch (const std::exception& error) {
    if (!collective::is_of_peer(error)) {
      log(LogLevel::error, error.what());
    }
  }
}

void CallWatch::leave(std::function<void(const WatchedThread&)> function) const noexcept {
  static std::atomic<bool> hangs = false;
  try {
    Started call = start(std::move(function));
    if (!hangs && !call.wait(until_aborted)) {
      hangs = true;
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the run has failed
  }
}

}  // namespace tessera::cuda
