export module tessera.ranks:signals;

import tessera.base;
import :control;

export namespace tessera::collective {

/// While it lives, this thread, and all that it starts meanwhile, have the signals blocked that a
/// run answers: no handler interrupts what they compute. Who waits for the signals (SignalThread,
/// SignalQueue) answers them: as ServedSignals says, or as without this object. Threads that the
/// program had started before have a handler. A process that is forked meanwhile has its signals as
/// they were before, unless it is a rank.
///
/// SIGINT, SIGTERM and SIGHUP are requests to stop, of which a second one ends the run; SIGUSR1,
/// SIGUSR2 (unless the program handles them) and SIGXCPU are notices that the time is nearly over,
/// which never do. Signals that this process was started to ignore (nohup, background jobs of a
/// script) are left alone. A write to a closed pipe (SIGPIPE) is noticed by
/// `wrote_to_closed_pipe`; one beyond the limit of a file's size (SIGXFSZ) just fails.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  /// As fork(), for a rank: its signals stay held.
  int fork_rank();

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

/// While it lives, held signals set control.interrupts.
class ServedSignals {
 public:
  /// `second_ends`: a second request ends this process at once, with exit code 130.
  ServedSignals(Control& control, bool second_ends);
  ~ServedSignals();
  ServedSignals(const ServedSignals&) = delete;
  ServedSignals& operator=(const ServedSignals&) = delete;
  /// Whether there was a second request. `timeout`, terminals and launchers send one request as
  /// several signals, so those within half a second are one.
  bool asked_again() const;

 private:
  Control* before_;
};

/// A thread of this process that waits for the held signals.
class SignalThread {
 public:
  /// Error (run): it cannot be started.
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  class Waiting;
  std::unique_ptr<Waiting> waiting_;
};

/// For a process that only waits for its ranks: the held signals and the end of a child.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  /// Returns after a signal, which is then answered, or after `seconds`.
  void wait(double seconds);
  /// For a forked rank, which takes its signals in another way.
  void leave();

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

/// Whether the calling thread has written to a closed pipe since it last asked, while signals are
/// held.
bool wrote_to_closed_pipe();

}  // namespace tessera::collective
