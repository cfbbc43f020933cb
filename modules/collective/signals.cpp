module;
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>
module tessera.collective;

import tessera.base;
import :control;
import :signals;

namespace tessera::collective {
namespace {

// What the handler needs; a signal handler has no arguments of its own.
std::atomic<Control*> handled_control{nullptr};
std::atomic<bool> second_request_ends{false};
StopRequests handled_requests;

void on_signal(int signal) {
  const int error = errno;
  if (Control* control = handled_control.load()) {
    control->interrupts.store(1);
    // Every further write to a closed pipe raises SIGPIPE again: that is no second request.
    if (signal != SIGPIPE && handled_requests.repeated() && second_request_ends.load()) {
      _exit(interrupted_code);
    }
  }
  errno = error;
}

bool ignored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

std::vector<int> stop_signals() {
  std::vector<int> signals;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!ignored(signal)) {
      signals.push_back(signal);
    }
  }
  return signals;
}

bool StopRequests::repeated() {
  constexpr std::int64_t same_request = 500'000'000;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t at = static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
  std::int64_t first = 0;
  return !first_.compare_exchange_strong(first, at) && at - first > same_request;
}

struct StopHandlers::Saved {
  std::vector<std::pair<int, struct sigaction>> actions;
};

StopHandlers::StopHandlers(Control& control, bool second_ends) : saved_(std::make_unique<Saved>()) {
  handled_requests.reset();
  second_request_ends.store(second_ends);
  handled_control.store(&control);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  std::vector<int> signals = stop_signals();
  if (!ignored(SIGPIPE)) {
    signals.push_back(SIGPIPE);
  }
  for (const int signal : signals) {
    struct sigaction before = {};
    sigaction(signal, &action, &before);
    saved_->actions.emplace_back(signal, before);
  }
}

StopHandlers::~StopHandlers() {
  for (const auto& [signal, action] : saved_->actions) {
    sigaction(signal, &action, nullptr);
  }
  handled_control.store(nullptr);
}

struct SignalQueue::Saved {
  sigset_t watched{};
  sigset_t mask{};
  struct sigaction child = {};
};

SignalQueue::SignalQueue() : saved_(std::make_unique<Saved>()) {
  sigemptyset(&saved_->watched);
  sigaddset(&saved_->watched, SIGCHLD);
  for (const int signal : stop_signals()) {
    sigaddset(&saved_->watched, signal);
  }
  // A process that was started with SIGCHLD ignored would never learn how its children ended.
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &action, &saved_->child);
  sigprocmask(SIG_BLOCK, &saved_->watched, &saved_->mask);
}

SignalQueue::~SignalQueue() {
  unblock();
  sigaction(SIGCHLD, &saved_->child, nullptr);
}

void SignalQueue::unblock() { sigprocmask(SIG_SETMASK, &saved_->mask, nullptr); }

SignalQueue::Next SignalQueue::next(double seconds) {
  const timespec limit{
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  const int signal = sigtimedwait(&saved_->watched, nullptr, &limit);
  return signal <= 0 ? Next::none : signal == SIGCHLD ? Next::child : Next::stop;
}

}  // namespace tessera::collective
