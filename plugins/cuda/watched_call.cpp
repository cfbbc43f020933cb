#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <tessera/signals.hpp>
#include <thread>
#include <utility>

#include "library.hpp"

import tessera.base;
import tessera.device;

#include "watched_call.hpp"

namespace tessera::cuda {
namespace {

class PendingCall {
 public:
  void end(Result result) {
    const std::lock_guard lock(mutex_);
    result_ = result;
    ended_ = true;
    changed_.notify_all();
  }
  /// Whether it ends within this time.
  bool wait(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [this] { return ended_; });
  }
  Result result() {
    const std::lock_guard lock(mutex_);
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  Result result_ = Result::success;
};

thread_local PendingCall* awaited = nullptr;

}  // namespace

Result watched_call(Device device, Context context, std::function<Result()> call) {
  const auto pending = std::make_shared<PendingCall>();
  {
    const ThreadsWithoutSignals quiet;
    std::thread([pending, context, call = std::move(call)] {
      const Result entered = driver_api().ctx_set_current(context);
      pending->end(entered == Result::success ? call() : entered);
    }).detach();
  }
  constexpr std::chrono::milliseconds usual(2);
  if (!pending->wait(usual)) {
    awaited = pending.get();
    try {
      Stream::default_of(device).synchronize();
    } catch (...) {
      awaited = nullptr;
      constexpr std::chrono::seconds until_aborted(2);
      pending->wait(until_aborted);
      throw;
    }
    awaited = nullptr;
  }
  return pending->result();
}

bool wait_for_watched_call(const WaitCheck& still_runs) {
  if (awaited == nullptr) [[likely]] {
    return false;
  }
  PendingCall& pending = *std::exchange(awaited, nullptr);  // a look may wait for the device
  constexpr std::chrono::milliseconds between_looks(20);
  while (!pending.wait(between_looks)) {
    still_runs();
  }
  return true;
}

}  // namespace tessera::cuda
