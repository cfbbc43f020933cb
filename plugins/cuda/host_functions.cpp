#include "host_functions.hpp"

#include <tessera/signals.hpp>
#include <utility>

#include "library.hpp"

import tessera.base;

namespace tessera::cuda {

HostFunctions::HostFunctions(StreamHandle stream, Counter* done) : stream_(stream), done_(done) {
  done_->store(0);
  const ThreadsWithoutSignals quiet;
  thread_ = std::thread([this] { run(); });
}

HostFunctions::~HostFunctions() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostFunctions::launch(std::function<void()> function) {
  const std::lock_guard order(order_);
  {
    const std::lock_guard lock(mutex_);
    functions_.push_back(std::move(function));
  }
  const Result launched = driver_api().launch_host_func(stream_, started, this);
  if (launched != Result::success) {
    const std::lock_guard lock(mutex_);
    functions_.pop_back();
  }
  check(launched, "cuLaunchHostFunc");
  ++queued_;
  // The comparison is of the difference's sign, so numbers may begin again at 0.
  check(driver_api().stream_wait_value(stream_, reinterpret_cast<DevicePointer>(done_), queued_,
                                       wait_value_geq),
        "cuStreamWaitValue32");
}

std::exception_ptr HostFunctions::take_error() {
  const std::lock_guard lock(mutex_);
  return std::exchange(error_, nullptr);
}

void HostFunctions::started(void* self) {
  auto& functions = *static_cast<HostFunctions*>(self);
  const std::lock_guard lock(functions.mutex_);
  ++functions.may_run_;
  functions.changed_.notify_all();
}

void HostFunctions::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return may_run_ > 0 || ending_; });
    if (may_run_ == 0) {
      return;
    }
    --may_run_;
    std::function<void()> function = std::move(functions_.front());
    functions_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      function();
    } catch (...) {
      error = std::current_exception();
    }
    function = nullptr;  // what it holds goes away before the function counts as done
    lock.lock();
    if (error_ == nullptr) {
      error_ = error;
    }
    done_->fetch_add(1);
  }
}

}  // namespace tessera::cuda
