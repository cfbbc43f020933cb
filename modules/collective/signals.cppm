module tessera.collective:signals;

import tessera.base;
import :control;

namespace tessera::collective {

constexpr int interrupted_code = 130;

/// SIGINT, SIGTERM and SIGHUP: they ask a run to save and to end. Without those that this process
/// was started to ignore (nohup, background jobs of a script).
std::vector<int> stop_signals();

/// Tells a second request to stop from the first. `timeout`, terminals and launchers send one
/// request as several signals, so those within half a second are one.
class StopRequests {
 public:
  /// Notes a signal; returns whether it is a further request. Safe in a signal handler.
  bool repeated();
  inline void reset() { first_.store(0); }

 private:
  std::atomic<std::int64_t> first_{0};  // nanoseconds; 0: none
};

/// While it lives, a stop signal sets Control::interrupts. So does a write to a closed pipe
/// (SIGPIPE), which does not kill the process. One at a time; forked processes inherit it.
class StopHandlers {
 public:
  /// `second_ends`: a second request ends this process at once, with exit code 130.
  StopHandlers(Control& control, bool second_ends);
  ~StopHandlers();
  StopHandlers(const StopHandlers&) = delete;
  StopHandlers& operator=(const StopHandlers&) = delete;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

/// Stop signals and the end of a child, blocked and taken one by one.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  enum class Next : std::uint8_t { none, child, stop };
  Next next(double seconds);
  /// For a forked process: the signals as they were before.
  void unblock();

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

}  // namespace tessera::collective
