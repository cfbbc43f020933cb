module;
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>
module tessera.collective;

import tessera.base;
import :control;
import :launch;
import :region;
import :runner;
import :state;
import :world;

namespace tessera::collective {
namespace {

constexpr int interrupted_code = 130;

/// SIGINT, SIGTERM and the end of a child, blocked and taken one by one.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&watched_);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) {
      sigaddset(&watched_, signal);
    }
    sigprocmask(SIG_BLOCK, &watched_, &before_);
  }
  ~SignalQueue() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  /// The next signal, or 0 after `seconds`.
  int next(double seconds) {
    const timespec limit{
        static_cast<time_t>(seconds),
        static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
    const int signal = sigtimedwait(&watched_, nullptr, &limit);
    return signal > 0 ? signal : 0;
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t watched_;
  sigset_t before_;
};

/// The forked ranks and what the parent knows of them.
class Children {
 public:
  Children(Control& control, Region& region) : control_(control), region_(region) {}

  void add(pid_t process) { processes_.push_back(process); }
  bool any_alive() const {
    return std::any_of(processes_.begin(), processes_.end(), [](pid_t p) { return p > 0; });
  }
  void kill_all() const {
    for (const pid_t process : processes_) {
      if (process > 0) {
        kill(process, SIGKILL);
      }
    }
  }
  int code() const { return code_; }

  /// Takes the children that have ended; one that died fails the run.
  void reap(bool killed_by_parent) {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      int status = 0;
      if (processes_[rank] <= 0 || waitpid(processes_[rank], &status, WNOHANG) <= 0) {
        continue;
      }
      processes_[rank] = 0;
      if (WIFEXITED(status)) {
        control_.ranks()[rank].ended.store(1);
        code_ = code_ != 0 ? code_ : WEXITSTATUS(status);
      } else if (WIFSIGNALED(status) && !killed_by_parent) {
        const std::int64_t step = control_.ranks()[rank].step.load();
        const std::string where = control_.ranks()[rank].where.load();
        control_.publish_error(
            -1,
            fmt::format("rank {} was killed by signal {} ({}){}{}{}; its last call: {}", rank,
                        WTERMSIG(status), strsignal(WTERMSIG(status)),
                        step >= 0 ? fmt::format(" at step {}", step) : "",
                        where.empty() ? "" : " in ", where,
                        control_.last_call(region_, static_cast<int>(rank))),
            ErrorKind::run);
      }
    }
  }

 private:
  Control& control_;
  Region& region_;
  std::vector<pid_t> processes_;  // 0 once it has ended
  int code_ = 0;
};

[[noreturn]] void run_child(const std::shared_ptr<Region>& region, int rank,
                            const LaunchOptions& options, const RankFunction& run, pid_t parent,
                            const sigset_t& mask) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(1);  // the parent died before the line above
  }
  signal(SIGINT, SIG_IGN);  // a terminal sends it to all; the parent passes it on as a request
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  const int code = run_rank(region, rank, options, Transport::shm, run);
  std::fflush(nullptr);
  _exit(code);
}

std::atomic<Control*> lone_control{nullptr};

void interrupt_lone(int) {
  if (Control* control = lone_control.load()) {
    if (control->interrupts.fetch_add(1) != 0) {
      _exit(interrupted_code);
    }
  }
}

/// One rank runs in this process: easy to debug, and nothing to share.
int launch_lone(const LaunchOptions& options, const RankFunction& run) {
  const auto region = Region::create(arena_bytes(options), false);
  Control* control = Control::create(*region, 1);
  lone_control.store(control);
  struct sigaction action = {};
  action.sa_handler = interrupt_lone;
  struct sigaction before_int;
  struct sigaction before_term;
  sigaction(SIGINT, &action, &before_int);
  sigaction(SIGTERM, &action, &before_term);
  const int code = run_rank(region, 0, options, Transport::single, run);
  sigaction(SIGINT, &before_int, nullptr);
  sigaction(SIGTERM, &before_term, nullptr);
  lone_control.store(nullptr);
  return finish(*control, *region, options, code);
}

}  // namespace

std::size_t arena_bytes(const LaunchOptions& options) {
  if (options.arena_bytes != 0) {
    return options.arena_bytes;
  }
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

int exit_code_of(ErrorKind kind) {
  return kind == ErrorKind::input ? 2 : kind == ErrorKind::run ? 1 : interrupted_code;
}

int run_rank(const std::shared_ptr<Region>& region, int rank, const LaunchOptions& options,
             Transport transport, const RankFunction& run) {
  auto* control = reinterpret_cast<Control*>(region->base());
  ErrorKind kind = ErrorKind::run;
  std::string text;
  try {
    World world(
        std::make_shared<WorldState>(region, rank, static_cast<int>(control->size), transport));
    if (options.timeout_seconds > 0) {
      world.set_timeout(options.timeout_seconds);
    }
    // Published before the world ends: peers must not see an ended rank first.
    try {
      return run(world);
    } catch (const Error& error) {
      kind = error.kind();
      world.publish_error(error.what(), kind);
    } catch (const std::exception& error) {
      world.publish_error(error.what(), kind);
    } catch (...) {
      world.publish_error("unknown exception", kind);
    }
  } catch (const Error& error) {
    kind = error.kind();
    control->publish_error(rank, error.what(), kind);
  }
  return exit_code_of(kind);
}

int finish(Control& control, Region& region, const LaunchOptions& options, int code) {
  const FirstError error = control.first_error();
  if (error.text.empty()) {
    return code;
  }
  if (options.print_error && error.kind != ErrorKind::interrupted) {
    std::string text = fmt::format("error: {}\n", to_string(error));
    if (error.text.find("group [") != std::string::npos) {
      text += fmt::format("last calls of each rank:\n{}", control.recent_calls(region, 4));
    }
    std::fputs(text.c_str(), stderr);
  }
  return exit_code_of(error.kind);
}

int launch(const LaunchOptions& options, const RankFunction& run) {
  if (options.ranks < 1) {
    fail_input(fmt::format("launch: needs at least one rank (got {})", options.ranks));
  }
  if (options.ranks == 1) {
    return launch_lone(options, run);
  }
  const auto region = Region::create(arena_bytes(options), true);
  Control* control = Control::create(*region, options.ranks);
  SignalQueue signals;
  Children children(*control, *region);
  std::fflush(nullptr);  // or every child would write what stands in the buffers
  const pid_t parent = getpid();
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      run_child(region, rank, options, run, parent, signals.before());
    }
    if (process < 0) {
      const std::string reason = std::strerror(errno);
      children.kill_all();
      while (children.any_alive()) {
        signals.next(0.05);
        children.reap(true);
      }
      fail(fmt::format("launch: cannot start rank {} ({})", rank, reason));
    }
    children.add(process);
  }
  bool killed = false;
  bool forced = false;
  auto failed_at = std::chrono::steady_clock::time_point::max();
  while (children.any_alive()) {
    const int signal = signals.next(0.1);
    if ((signal == SIGINT || signal == SIGTERM) && control->interrupts.fetch_add(1) != 0) {
      forced = killed = true;
      children.kill_all();
    }
    children.reap(killed);
    const auto now = std::chrono::steady_clock::now();
    if (control->failed.load() != 0 && failed_at > now) {
      failed_at = now;
    }
    if (failed_at <= now && !killed &&
        std::chrono::duration<double>(now - failed_at).count() > options.grace_seconds) {
      killed = true;
      children.kill_all();
    }
  }
  if (forced) {
    return interrupted_code;
  }
  return finish(*control, *region, options, children.code());
}

}  // namespace tessera::collective
