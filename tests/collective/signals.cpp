// Signals to a launch: requests to stop, ranks that are stopped for a while, and what was ignored
// before.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "catch.hpp"

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

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace

TEST_CASE("every signal that asks to stop lets the ranks save, alone or sent to all of them") {
  for (const int ranks : {1, 2}) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
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

TEST_CASE("a signal that was ignored at the start stays ignored") {
  for (const int ranks : {1, 2}) {
    for (const int number : {SIGINT, SIGHUP}) {
      const Outcome outcome = as_program([&] {
        setpgid(0, 0);
        signal(number, SIG_IGN);  // nohup, or a background job of a script
        const pid_t parent = getpid();
        return launch({.ranks = ranks}, [&](World& world) {
          world.everyone().barrier();
          if (world.rank() == 0) {
            kill(-parent, number);
          }
          return save_when_asked(world, 0.5);
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
      usleep(300'000);
      kill(-group, SIGSTOP);  // as Ctrl-Z and `fg`
      usleep(2'500'000);
      kill(-group, SIGCONT);
      _exit(0);
    }
    return launch({.ranks = 2, .timeout_seconds = 2}, [](World& world) {
      for (int i = 0; i < 6; ++i) {
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
