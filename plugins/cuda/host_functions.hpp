// Functions of the host in a stream.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "driver_api.hpp"

namespace tessera::cuda {

/// The functions of one stream, on a thread of their own. A function may block until others have
/// run, of other streams and processes. CUDA's own functions of the host may not: they can share
/// one thread. So the stream only wakes the thread, and waits until the thread has written the
/// function's number to pinned memory. The context must be current in the calls. Who queues blocks
/// while the stream's queue is full, so nothing that a function needs to run is held meanwhile.
class HostFunctions {
 public:
  using Counter = std::atomic<std::uint32_t>;

  /// `done`: pinned memory, which stays when this ends.
  HostFunctions(StreamHandle stream, Counter* done);
  /// Returns when the thread has ended; nothing may be queued any more.
  ~HostFunctions();
  HostFunctions(const HostFunctions&) = delete;
  HostFunctions& operator=(const HostFunctions&) = delete;

  Counter* counter() const { return done_; }
  void launch(std::function<void()> function);
  /// The first error of a function since the last call.
  std::exception_ptr take_error();

 private:
  static void started(void* self);
  void run();

  StreamHandle stream_;
  Counter* const done_;  // the number of the last function that ran
  std::mutex order_;     // of functions and their numbers in the stream; taken before mutex_
  std::uint32_t queued_ = 0;
  std::mutex mutex_;  // of what follows; never held in a call of the driver
  std::condition_variable changed_;
  std::deque<std::function<void()>> functions_;
  std::uint32_t may_run_ = 0;  // functions at the front that the stream has reached
  bool ending_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace tessera::cuda
