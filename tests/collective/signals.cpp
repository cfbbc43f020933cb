// Signals to a launch: requests to stop, ranks that are stopped for a while, and what was ignored
// before.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "thread_signals.hpp"

import tessera.base;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;

#include "processes.hpp"

using namespace collective_test;

namespace {

/// Works until the ranks have agreed to stop, or for `limit` seconds of rank 0. When asked to stop,
/// rank 0 says that it has saved.
int save_when_asked(World& world, double limit = 10) {
  const auto begin = Clock::now();
  float stop = 0;
  while (stop == 0) {
    usleep(1000);
    stop = world.interrupt_requested()                         ? 2
           : world.rank() == 0 && seconds_since(begin) > limit ? 1
                                                               : 0;
    world.everyone().all_reduce(&stop, &stop, 1, DType::f32, ReduceOp::max);
  }
  if (stop == 2 && world.rank() == 0) {
    std::fputs("saved", stderr);
  }
  return stop == 2 ? 130 : 0;
}

/// Without the C library's own signals, which have handlers from the first thread on.
std::uint64_t handled_by_program(const testing::ThreadSignals& signals) {
  return signals.handled & ~testing::bits_of({32, 33});
}

}  // namespace

TEST_CASE("every signal that asks to stop lets the ranks save, alone or sent to all of them") {
  for (const int ranks : {1, 2}) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
      for (const bool whole_group : {false, true}) {
        const Outcome outcome = as_program([&] {
          setpgid(0, 0);
          const pid_t parent = getpid();
          return launch({.ranks = ranks}, [&](World& world) {
            world.everyone().barrier();
            if (world.rank() == 0) {
              // As `timeout` does it: to the process and to its group, one right after the other.
              kill(parent, number);
              kill(whole_group ? -parent : parent, number);
            }
            return save_when_asked(world);
          });
        });
        INFO(ranks << " ranks, signal " << number << ", group " << whole_group);
        CHECK(outcome.code == 130);
        CHECK(outcome.errors == "saved");
      }
    }
  }
}

TEST_CASE("a request that the ranks alone have seen does not end the launcher") {
  for (const int number : {SIGTERM, SIGXCPU}) {
    const Outcome outcome = as_program([&] {
      setpgid(0, 0);
      const pid_t parent = getpid();
      return launch({.ranks = 2}, [&](World& world) {
        world.everyone().barrier();
        if (world.rank() == 0) {
          const pid_t waker = fork();
          if (waker == 0) {
            usleep(500'000);
            kill(parent, SIGCONT);
            _exit(0);
          }
          setpgid(waker, waker);
          kill(parent, SIGSTOP);
          usleep(100'000);  // the launcher has stopped; it will look at its ranks first
          kill(-parent, number);
        }
        return save_when_asked(world);
      });
    });
    INFO("signal " << number);
    CHECK(outcome.code == 130);
    CHECK(outcome.errors == "saved");
  }
}

TEST_CASE("signals that were blocked at the start stop a run") {
  for (const int ranks : {1, 2}) {
    for (const bool launcher : {true, false}) {
      const Outcome outcome = as_program([&] {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, nullptr);  // by a parent that waits for its own signals
        const pid_t parent = getpid();
        return launch({.ranks = ranks}, [&](World& world) {
          if (world.rank() == 0) {
            kill(launcher ? parent : getpid(), SIGTERM);
          }
          return save_when_asked(world);
        });
      });
      INFO(ranks << " ranks, to the launcher: " << launcher);
      CHECK(outcome.code == 130);
      CHECK(outcome.errors == "saved");
    }
  }
}

#if !__has_feature(thread_sanitizer)  // it has a thread of its own
TEST_CASE("no rank computes in a thread that a handler may interrupt") {
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      return launch({.ranks = ranks}, [](World& world) {
        reduce_one(world);
        std::atomic<bool> done{false};
        std::thread own([&] {
          while (!done) {
            usleep(1000);
          }
        });
        const auto threads = testing::thread_signals(getpid());
        done = true;
        own.join();
        const std::uint64_t answered = testing::bits_of(
            {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE, SIGXFSZ});
        const auto waiting =
            std::ranges::count(threads, "tessera-signals", &testing::ThreadSignals::name);
        std::fputs(testing::interruptible(threads).c_str(), stderr);
        return threads.size() == 3 && waiting == 1 && (threads[0].handled & answered) == answered
                   ? 0
                   : 3;
      });
    });
    CHECK(outcome.code == 0);
    CHECK(outcome.errors.empty());
  }
}
#endif

#if !__has_feature(thread_sanitizer)  // it ends a process that starts threads after a fork
TEST_CASE("threads that the program started before take part in a request to stop") {
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      std::thread([] {
        while (true) {
          usleep(1000);
        }
      }).detach();  // the only one that does not block the signal
      const pid_t parent = getpid();
      return launch({.ranks = ranks}, [&](World& world) {
        world.everyone().barrier();
        if (world.rank() == 0) {
          kill(parent, SIGTERM);
        }
        return save_when_asked(world);
      });
    });
    CHECK(outcome.code == 130);
    CHECK(outcome.errors == "saved");
  }
}
#endif

TEST_CASE("after a notice of little time a request to stop is the first one") {
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      const pid_t parent = getpid();
      return launch({.ranks = ranks}, [&](World& world) {
        world.everyone().barrier();
        if (world.rank() == 0) {
          // Slurm's --signal, the limit of CPU time each second, and at last the end of the job.
          for (const int number : {SIGUSR1, SIGXCPU, SIGTERM}) {
            kill(parent, number);
            usleep(600'000);
          }
        }
        return save_when_asked(world);
      });
    });
    CHECK(outcome.code == 130);
    CHECK(outcome.errors == "saved");
  }
}

TEST_CASE("the limit of CPU time lets the ranks save") {
  const Outcome outcome = as_program([&] {
    const rlimit limit = {1, RLIM_INFINITY};  // seconds
    setrlimit(RLIMIT_CPU, &limit);
    return launch({.ranks = 1}, [&](World& world) {
      while (!world.interrupt_requested()) {
      }
      return save_when_asked(world);
    });
  });
  CHECK(outcome.code == 130);
  CHECK(outcome.errors == "saved");
}

TEST_CASE("a signal that the program handles itself stays the program's") {
  static std::atomic<int> calls;
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      calls = 0;
      signal(SIGUSR1, [](int) { ++calls; });
      return launch({.ranks = ranks}, [&](World& world) {
        raise(SIGUSR1);
        usleep(50'000);
        return world.interrupt_agreed() ? 5 : calls.load();
      });
    });
    CHECK(outcome.code == 1);
  }
}

TEST_CASE("a process that a rank forks has its signals as the program had them") {
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      signal(SIGUSR2, SIG_IGN);
      signal(SIGINT, [](int) {});
      sigset_t blocked;
      sigemptyset(&blocked);
      sigaddset(&blocked, SIGTERM);
      sigprocmask(SIG_SETMASK, &blocked, nullptr);
      const auto before = testing::read_thread_signals("/proc/self/status");
      return launch({.ranks = ranks}, [&](World& /*world*/) {
        const pid_t child = fork();
        if (child == 0) {
          const auto own = testing::read_thread_signals("/proc/self/status");
          _exit((own.blocked != before.blocked ? 1 : 0) + (own.ignored != before.ignored ? 2 : 0) +
                (handled_by_program(own) != handled_by_program(before) ? 4 : 0));
        }
        int status = 0;
        waitpid(child, &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 64;
      });
    });
    CHECK(outcome.code == 0);
  }
}

TEST_CASE("after a launch the program has its signals as before") {
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      signal(SIGINT, [](int) {});
      const auto before = testing::read_thread_signals("/proc/self/status");
      const pid_t parent = getpid();
      const int code = launch({.ranks = ranks}, [&](World& world) {
        if (world.rank() == 0) {
          kill(parent, SIGTERM);
          usleep(50'000);
          kill(parent, SIGTERM);  // of the same request
        }
        return save_when_asked(world);
      });
      const auto after = testing::read_thread_signals("/proc/self/status");
      return after.blocked == before.blocked && after.ignored == before.ignored &&
                     handled_by_program(after) == handled_by_program(before)
                 ? code
                 : 3;
    });
    CHECK(outcome.code == 130);
    CHECK(outcome.errors == "saved");
  }
}

TEST_CASE("a signal that was ignored at the start stays ignored") {
  for (const int ranks : {1, 2}) {
    for (const int number : {SIGINT, SIGHUP, SIGUSR1}) {
      const Outcome outcome = as_program([&] {
        setpgid(0, 0);
        signal(number, SIG_IGN);  // nohup, or a background job of a script
        const pid_t parent = getpid();
        return launch({.ranks = ranks}, [&](World& world) {
          world.everyone().barrier();
          if (world.rank() == 0) {
            kill(-parent, number);
          }
          return save_when_asked(world, 0.3);
        });
      });
      CHECK(outcome.code == 0);
      CHECK(outcome.errors.empty());
    }
  }
}

TEST_CASE("a write to a closed pipe is a request to stop") {
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      int ends[2];
      if (pipe(ends) != 0) {
        return 98;
      }
      close(ends[0]);
      return launch({.ranks = ranks}, [&](World& world) {
        for (int i = 0; world.rank() == 0 && i < 3; ++i) {  // every write raises it again
          if (write(ends[1], "x", 1) == 1) {
            return 97;
          }
          usleep(300'000);
        }
        return save_when_asked(world);
      });
    });
    CHECK(outcome.code == 130);
    CHECK(outcome.errors == "saved");
  }
}

TEST_CASE("a second request ends the run at once") {
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      const pid_t parent = getpid();
      return launch({.ranks = ranks}, [&](World& world) -> int {
        if (world.rank() == 0) {
          kill(parent, SIGTERM);
          usleep(700'000);
          kill(parent, SIGINT);
        }
        while (true) {
          usleep(1000);
        }
      });
    });
    CHECK(outcome.code == 130);
    CHECK(outcome.errors.empty());
    CHECK(outcome.seconds < 4);
  }
}

TEST_CASE("a launch ends when its starter ignored SIGCHLD") {
  const Outcome outcome = as_program([] {
    signal(SIGCHLD, SIG_IGN);
    alarm(10);
    return launch({.ranks = 2}, [](World& world) { return 3 + world.rank(); });
  });
  CHECK((outcome.code == 3 || outcome.code == 4));
}

TEST_CASE("a stopped rank is reported once, and the run continues when the rank does") {
  const Outcome outcome = as_program([] {
    return launch({.ranks = 4, .report_seconds = 0.3}, [](World& world) {
      const std::int64_t own = getpid();
      std::vector<std::int64_t> processes(4);
      world.everyone().all_gather(&own, processes.data(), 1, DType::i64);
      world.set_progress(7, "forward");
      if (world.rank() == 1) {
        raise(SIGSTOP);
      }
      if (world.rank() == 3) {
        usleep(1'200'000);
        kill(static_cast<pid_t>(processes[1]), SIGCONT);
      } else {
        // Rank 0 waits for rank 2, and that one for rank 1.
        const int peer = world.rank() == 0 ? 0 : 1;
        if (world.rank() != 1) {
          world.communicator(peer == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 2});
        }
        if (world.rank() != 0) {
          world.communicator(std::vector<int>{1, 2}).barrier();
        }
        if (world.rank() != 1) {
          world.communicator(std::vector<int>{0, 2}).barrier();
        }
      }
      reduce_one(world);
      return 0;
    });
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
  CHECK(count(outcome.errors, "warning: ") == 1);
  CHECK(contains(outcome.errors, "barrier(), call 0 of group ["));
  CHECK(contains(outcome.errors, "rank 1 is stopped: `kill -CONT "));
  CHECK(contains(outcome.errors, "continues when rank 1 does"));
}

TEST_CASE("a rank that is stopped while nobody waits for it is reported by the parent") {
  const Outcome outcome = as_program([] {
    return launch({.ranks = 2, .report_seconds = 0.1}, [](World& world) {
      if (world.rank() == 1) {
        const pid_t self = getpid();
        if (fork() == 0) {
          usleep(2'700'000);
          kill(self, SIGCONT);
          _exit(0);
        }
        raise(SIGSTOP);
      }
      return 0;
    });
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
  CHECK(count(outcome.errors, "warning: ") == 1);
  CHECK(contains(outcome.errors, "rank 1 has been stopped for 2 s"));
}

TEST_CASE("the time in which the whole run is stopped is nobody's wait") {
  const Outcome outcome = as_program([] {
    setpgid(0, 0);
    const pid_t group = getpid();
    const pid_t helper = fork();
    if (helper == 0) {
      setpgid(0, 0);
      usleep(600'000);
      kill(-group, SIGTSTP);  // Ctrl-Z and `fg`
      usleep(2'500'000);
      kill(-group, SIGCONT);
      _exit(0);
    }
    return launch({.ranks = 2, .timeout_seconds = 2}, [](World& world) {
      for (int i = 0; i < 15; ++i) {
        if (world.rank() == 1) {
          usleep(100'000);  // so that rank 0 is waiting when all are stopped
        }
        reduce_one(world);
      }
      return 0;
    });
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 0);
  CHECK(outcome.errors.empty());
  CHECK(outcome.seconds > 2.5);
}
