module;
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
module tessera.app.base;

import tessera.base;

namespace tessera::app {
namespace {

void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF) {
      // The lowest free number is this one: those below it are open.
      [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);
    }
  }
}

void raise_stack_limit() {
  constexpr rlim_t usual = rlim_t{8} << 20;
  constexpr rlim_t smallest = rlim_t{1} << 20;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= usual) {
    return;
  }
  // The main thread's stack may grow to the limit of the moment; room for that is reserved.
  rlimit raised = {usual, std::max(limit.rlim_max, usual)};
  if (::setrlimit(RLIMIT_STACK, &raised) != 0) {  // above the hard limit: root only
    raised = {limit.rlim_max, limit.rlim_max};
    ::setrlimit(RLIMIT_STACK, &raised);
  }
  ::getrlimit(RLIMIT_STACK, &limit);
  if (limit.rlim_cur < smallest) {
    fail_input(
        {.thing = "stack",
         .wrong = "the limit is too low",
         .expected = fmt::format("at least {}", format_bytes(smallest)),
         .got = format_bytes(limit.rlim_cur),
         .advice = fmt::format("start in a shell whose hard limit (`ulimit -Hs`) is at least "
                               "{}; only root can raise it in this one",
                               usual >> 10)});
  }
  // Threads have the limit of the process's start otherwise.
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) == 0) {
    ::pthread_attr_setstacksize(&attributes, limit.rlim_cur);
    ::pthread_setattr_default_np(&attributes);
    ::pthread_attr_destroy(&attributes);
  }
}

/// A run holds a few files for each rank and each thing that it writes.
void raise_file_limit() {
  constexpr rlim_t usual = 4096;
  constexpr rlim_t smallest = 32;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= usual) {
    return;
  }
  limit.rlim_cur = std::min(usual, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < smallest) {
    fail_input({.thing = "open files",
                .wrong = "the limit is too low",
                .expected = fmt::format("at least {}", smallest),
                .got = fmt::format("{}", limit.rlim_cur),
                .advice = "start in a shell whose hard limit (`ulimit -Hn`) is higher"});
  }
}

/// Blocked, not ignored: programs that this one starts get their own mask.
void block_file_size_signal() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

void prepare_process() {
  open_standard_streams();
  block_file_size_signal();
  raise_stack_limit();
  raise_file_limit();
}

}  // namespace tessera::app
