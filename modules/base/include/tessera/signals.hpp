// Threads and signals. A handler runs on the stack of the thread that it interrupts, which must
// have one at that moment, and must be the program's to interrupt.
#pragma once
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>

namespace tessera {

/// While it lives, no signal's handler runs in this thread. For code that uses the stack pointer as
/// an ordinary register, as oneDNN's generated products do: the kernel would write a handler's
/// frame wherever that points. Signals that ask for something are delivered afterwards; a fault of
/// the code itself (SIGSEGV, SIGBUS...) ends the process as it does without a handler.
class NoHandlers {
 public:
  // The C library leaves out the two signals that it sends to all threads itself (setuid,
  // pthread_cancel), whose handlers are handlers too.
  NoHandlers() { ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, kernel_bytes); }
  ~NoHandlers() {
    ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before_, static_cast<void*>(nullptr), kernel_bytes);
  }
  NoHandlers(const NoHandlers&) = delete;
  NoHandlers& operator=(const NoHandlers&) = delete;

 private:
  static constexpr std::size_t kernel_bytes = 8;  // of the kernel's set: 64 signals
  static constexpr std::uint64_t all = ~std::uint64_t{0};
  std::uint64_t before_ = 0;
};

/// While it lives, threads that are started by this one take none of the process's signals: the
/// program's handlers run in the program's own threads. Left to them is what their own instructions
/// raise, and SIGPROF, which profilers send to the thread that runs.
class ThreadsWithoutSignals {
 public:
  ThreadsWithoutSignals() {
    sigset_t signals;
    ::sigfillset(&signals);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) {
      ::sigdelset(&signals, own);
    }
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~ThreadsWithoutSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  ThreadsWithoutSignals(const ThreadsWithoutSignals&) = delete;
  ThreadsWithoutSignals& operator=(const ThreadsWithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

/// While it lives, a pipe that nobody reads is an error of write() in this thread, without SIGPIPE,
/// which is a request to stop the run where the pipe is stdout's.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t before{};
    ::sigpending(&before);
    pending_before_ = ::sigismember(&before, SIGPIPE) == 1;
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &mask_);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;
  ~WithoutSigpipe() {
    const int error = errno;
    const timespec now{};
    if (!pending_before_) {
      ::sigtimedwait(&pipe_, nullptr, &now);
    }
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    errno = error;
  }

 private:
  sigset_t pipe_{};
  sigset_t mask_{};
  bool pending_before_ = false;
};

}  // namespace tessera
