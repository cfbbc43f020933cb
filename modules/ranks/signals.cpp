module;
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <iterator>
#include <memory>
#include <system_error>
#include <tessera/limits.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.ranks;

import tessera.base;
import :control;
import :signals;

namespace tessera::collective {
namespace {

constexpr std::array requests = {SIGINT, SIGTERM, SIGHUP};
constexpr std::array notices = {SIGUSR1, SIGUSR2, SIGXCPU};
constexpr std::array failed_writes = {SIGPIPE, SIGXFSZ};

struct sigaction action_of(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action;
}

bool ignored(int signal) { return action_of(signal).sa_handler == SIG_IGN; }

sigset_t set_of(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  return set;
}

sigset_t set_of(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) {
    sigaddset(&set, signal);
  }
  return set;
}

/// Takes what is pending of these signals.
bool take_pending(const sigset_t& signals) {
  constexpr timespec at_once{};
  bool any = false;
  while (sigtimedwait(&signals, nullptr, &at_once) > 0) {
    any = true;
  }
  return any;
}

/// Tells a second request from the first.
class Requests {
 public:
  /// Notes a request; returns whether it is a further one.
  bool repeated() {
    const std::int64_t at = now();
    std::int64_t first = 0;
    return !first_.compare_exchange_strong(first, at) && at - first > same_request;
  }
  void reset() { first_.store(0); }

 private:
  static constexpr std::int64_t same_request = 500'000'000;  // nanoseconds

  static std::int64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  }
  std::atomic<std::int64_t> first_{0};  // 0: none
};

using Actions = std::vector<std::pair<int, struct sigaction>>;

// State of a handler, a forked process and the thread of signals: none of them has arguments.
std::atomic<Control*> served{nullptr};
std::atomic<int> answering{0};          // how many threads may be using it
std::atomic<bool> has_answered{false};  // a signal has set its interrupts
std::atomic<bool> second_request_ends{false};
std::atomic<bool> requested_again{false};
Requests noted_requests;
sigset_t held_stops{};
sigset_t held_writes{};
// How the program had its signals: of the first of several objects that hold them.
std::atomic<const Actions*> original_actions{nullptr};
sigset_t original_mask{};
/// Whether the fork that this thread makes is a rank's.
thread_local bool forks_rank = false;

/// The signal does what it did before it was held.
void act_as_before(int signal) {
  const auto* const originals = original_actions.load();
  if (originals == nullptr) {
    return;
  }
  for (const auto& [number, original] : *originals) {
    if (number == signal) {
      struct sigaction held = {};
      const sigset_t only = set_of(signal);
      sigset_t mask = {};
      sigaction(signal, &original, &held);
      pthread_sigmask(SIG_UNBLOCK, &only, &mask);
      raise(signal);  // most often this thread and its process end here
      pthread_sigmask(SIG_SETMASK, &mask, nullptr);
      sigaction(signal, &held, nullptr);
    }
  }
}

/// Answers a signal. Also the handler of threads that do not block it: only what is safe there.
void answer(int signal) {
  if (signal == SIGXFSZ) {
    return;
  }
  const int error = errno;
  answering.fetch_add(1);
  if (Control* const control = served.load()) {
    control->interrupts.store(1);
    has_answered.store(true);
  }
  answering.fetch_sub(1);
  if (!has_answered.load()) {
    act_as_before(signal);
    // A limit of CPU time is told each second, and a batch system that has sent its notice asks
    // later, while the run may be saving: neither is impatience.
  } else if (std::ranges::find(requests, signal) != requests.end() && noted_requests.repeated()) {
    if (second_request_ends.load()) {
      _exit(exit_code_of(ErrorKind::interrupted));
    }
    requested_again.store(true);
  }
  errno = error;
}

/// A forked process has no thread that waits for signals.
void restore_in_child() {
  const auto* const originals = original_actions.load();
  if (originals == nullptr || forks_rank) {
    return;
  }
  for (const auto& [signal, action] : *originals) {
    sigaction(signal, &action, nullptr);
    if (sigismember(&original_mask, signal) == 0) {
      const sigset_t only = set_of(signal);
      pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    }
  }
}

std::vector<int> signals_to_stop() {
  std::vector<int> signals;
  std::ranges::copy_if(requests, std::back_inserter(signals), std::not_fn(&ignored));
  std::ranges::copy_if(notices, std::back_inserter(signals), [](int signal) {
    const auto handler = action_of(signal).sa_handler;
    return handler == SIG_DFL || handler == &answer;
  });
  return signals;
}

}  // namespace

struct HeldSignals::Before {
  Actions actions;
  sigset_t mask{};
};

HeldSignals::HeldSignals() : before_(std::make_unique<Before>()) {
  static const int registered = pthread_atfork(nullptr, nullptr, &restore_in_child);
  static_cast<void>(registered);
  std::vector<int> held = signals_to_stop();
  held_stops = set_of(held);
  std::vector<int> writes;
  std::ranges::copy_if(failed_writes, std::back_inserter(writes), std::not_fn(&ignored));
  held_writes = set_of(writes);
  held.insert(held.end(), writes.begin(), writes.end());
  for (const int signal : held) {
    before_->actions.emplace_back(signal, action_of(signal));
  }
  const sigset_t all = set_of(held);
  pthread_sigmask(SIG_BLOCK, &all, &before_->mask);
  if (original_actions.load() == nullptr) {
    original_mask = before_->mask;
    original_actions.store(&before_->actions);
  }
  struct sigaction action = {};
  action.sa_handler = &answer;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  for (const int signal : held) {
    sigaction(signal, &action, nullptr);
  }
}

HeldSignals::~HeldSignals() {
  take_pending(held_writes);
  if (has_answered.load()) {
    take_pending(held_stops);  // of the request that was answered
  }
  has_answered.store(false);
  for (const auto& [signal, action] : before_->actions) {
    sigaction(signal, &action, nullptr);
  }
  const Actions* own = &before_->actions;
  original_actions.compare_exchange_strong(own, nullptr);
  pthread_sigmask(SIG_SETMASK, &before_->mask, nullptr);
}

int HeldSignals::fork_rank() {
  forks_rank = true;
  const pid_t process = fork();
  forks_rank = false;
  return process;
}

ServedSignals::ServedSignals(Control& control, bool second_ends) : before_(served.load()) {
  if (control.interrupts.load() == 0) {  // else a request is known already
    noted_requests.reset();
    requested_again.store(false);
  }
  second_request_ends.store(second_ends);
  served.store(&control);
}

ServedSignals::~ServedSignals() {
  // A request to a whole group may have been answered by another process alone: what is still
  // pending here is that request.
  if (served.load()->interrupts.load() != 0) {
    has_answered.store(true);
  }
  served.store(before_);
  while (answering.load() != 0) {
    std::this_thread::yield();  // the memory of Control may go away now
  }
}

bool ServedSignals::asked_again() const { return requested_again.load(); }

class SignalThread::Waiting {
 public:
  Waiting()
      : signals_(signalfd(-1, &held_stops, SFD_CLOEXEC | SFD_NONBLOCK)),
        end_(eventfd(0, EFD_CLOEXEC)) {
    int problem = signals_ < 0 || end_ < 0 ? errno : 0;
    if (problem == 0) {
      try {
        thread_ = std::thread([this] { wait(); });
        pthread_setname_np(thread_.native_handle(), "tessera-signals");
      } catch (const std::system_error& error) {
        problem = error.code().value();
      }
    }
    if (problem != 0) {
      close_files();
      fail({.thing = "launch",
            .wrong = fmt::format("cannot start the thread that waits for signals ({})",
                                 reason_of(problem)),
            .advice = "raise the limits on processes and open files (`ulimit -u`, `ulimit -n`)"});
    }
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    eventfd_write(end_, 1);
    thread_.join();
    close_files();
  }

 private:
  void wait() {
    std::array<pollfd, 2> files{{{signals_, POLLIN, 0}, {end_, POLLIN, 0}}};
    while (files[1].revents == 0) {
      signalfd_siginfo signal{};
      while (read(signals_, &signal, sizeof(signal)) == sizeof(signal)) {
        answer(static_cast<int>(signal.ssi_signo));
      }
      poll(files.data(), files.size(), -1);
    }
  }

  void close_files() const {
    for (const int file : {signals_, end_}) {
      if (file >= 0) {
        close(file);
      }
    }
  }

  const int signals_;
  const int end_;
  std::thread thread_;
};

SignalThread::SignalThread() : waiting_(std::make_unique<Waiting>()) {}

SignalThread::~SignalThread() = default;

struct SignalQueue::Before {
  sigset_t mask{};
  struct sigaction child = {};
};

SignalQueue::SignalQueue() : before_(std::make_unique<Before>()) {
  // A process that was started with SIGCHLD ignored would never learn how its children ended.
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &action, &before_->child);
  const sigset_t child = set_of(SIGCHLD);
  pthread_sigmask(SIG_BLOCK, &child, &before_->mask);
}

SignalQueue::~SignalQueue() {
  leave();
  sigaction(SIGCHLD, &before_->child, nullptr);
}

void SignalQueue::leave() { pthread_sigmask(SIG_SETMASK, &before_->mask, nullptr); }

void SignalQueue::wait(double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  const timespec limit{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
  sigset_t watched = held_stops;
  sigaddset(&watched, SIGCHLD);
  const int signal = sigtimedwait(&watched, nullptr, &limit);
  if (signal > 0 && signal != SIGCHLD) {
    answer(signal);
  }
  if (wrote_to_closed_pipe()) {
    answer(SIGPIPE);
  }
}

bool wrote_to_closed_pipe() {
  sigset_t pending;
  return original_actions.load() != nullptr && sigismember(&held_writes, SIGPIPE) == 1 &&
         sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1 &&
         take_pending(set_of(SIGPIPE));
}

}  // namespace tessera::collective
