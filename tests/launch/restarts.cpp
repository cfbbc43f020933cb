// Ranks that are started again after one has died, thrown or stopped to move.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "shared_object.hpp"

import tessera.base;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;

#include "processes.hpp"

using namespace collective_test;

namespace {

/// What a launching process and its ranks know together.
struct Shared {
  std::atomic<int> starts{0};  // of ranks
  std::atomic<int> asked{0};   // calls of LaunchOptions::restart
  std::atomic<bool> from_outside{false};
  std::atomic<std::int64_t> step{-2};
};

/// Ranks that reduce after `first` has been called in the first attempt; the launch starts them
/// again at most `limit` times.
Outcome healing(int ranks, const std::function<void(World&)>& first, Shared*& shared,
                double stuck_seconds = 0, int limit = 1) {
  shared = tessera::testing::shared_object<Shared>();
  return as_program([&] {
    return launch({.ranks = ranks,
                   .timeout_seconds = 20,
                   .grace_seconds = 1,
                   .stuck_seconds = stuck_seconds,
                   .restart =
                       [&](const FailedAttempt& failed) {
                         shared->from_outside = failed.from_outside;
                         shared->step = failed.step;
                         const int asked = ++shared->asked;
                         return asked == failed.number && asked <= limit;
                       }},
                  [&](World& world) {
                    ++shared->starts;
                    world.set_progress(5, "testing");
                    world.everyone().barrier();
                    if (shared->asked < limit) {
                      first(world);
                    }
                    reduce_one(world);
                    return 7;
                  });
  });
}

}  // namespace

TEST_CASE("ranks start again after one was killed") {
  const int ranks = GENERATE(1, 3);
  Shared* shared = nullptr;
  const Outcome outcome = healing(
      ranks,
      [](World& world) {
        if (world.rank() == world.size() - 1) {
          kill(getpid(), SIGKILL);
        }
      },
      shared, 0, 2);
  INFO(outcome.errors);
  CHECK(outcome.code == 7);
  CHECK(outcome.errors.empty());
  CHECK(shared->asked == 2);
  CHECK(shared->starts == 3 * ranks);
  CHECK(shared->from_outside);
  CHECK(shared->step == 5);
  CHECK(left_in_shared_memory().empty());
}

TEST_CASE("an error of a rank, and its crash, are not from outside") {
  const bool crash = GENERATE(false, true);
  Shared* shared = nullptr;
  const Outcome outcome = healing(
      2,
      [crash](World& world) {
        if (world.rank() == 1 && crash) {
          signal(SIGSEGV, SIG_DFL);
          raise(SIGSEGV);
        }
        if (world.rank() == 1) {
          fail("a fault of one rank");
        }
      },
      shared);
  INFO(outcome.errors);
  CHECK(outcome.code == 7);
  CHECK(shared->starts == 4);
  CHECK_FALSE(shared->from_outside);
  CHECK(shared->step == 5);
}

TEST_CASE("a rank that is stopped, or that sleeps, is killed after a while") {
  const bool stopped = GENERATE(false, true);
  Shared* shared = nullptr;
  const Outcome outcome = healing(
      2,
      [stopped](World& world) {
        if (world.rank() == 1 && stopped) {
          raise(SIGSTOP);
        } else if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(30));
        }
      },
      shared, 0.5);
  INFO(outcome.errors);
  CHECK(outcome.code == 7);
  CHECK(outcome.seconds > 0.5);
  CHECK(outcome.seconds < 8);
  CHECK(shared->starts == 4);
  CHECK(shared->from_outside);
}

TEST_CASE("a rank that is stopped while it waits for another one is killed") {
  Shared* shared = nullptr;
  const Outcome outcome = healing(
      2,
      [](World& world) {
        const std::int64_t own = getpid();
        std::array<std::int64_t, 2> all{};
        world.everyone().all_gather(&own, all.data(), 1, DType::i64);
        if (world.rank() == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 1 waits for this one
          kill(static_cast<pid_t>(all[1]), SIGSTOP);
        }
        world.everyone().barrier();
      },
      shared, 0.5);
  INFO(outcome.errors);
  CHECK(outcome.code == 7);
  CHECK(outcome.seconds < 8);
  CHECK(shared->asked == 1);
  CHECK(shared->starts == 4);
  CHECK(shared->from_outside);
}

TEST_CASE("a rank that computes for long is not taken for one that hangs") {
  const bool in_turn = GENERATE(false, true);  // with sleeping, so that it is seen asleep
  Shared* shared = nullptr;
  const Outcome outcome = healing(
      2,
      [in_turn](World& world) {
        // The other rank waits for it, without a sign of life.
        for (const auto begin = Clock::now(); world.rank() == 1 && seconds_since(begin) < 1.5;) {
          for (const auto now = Clock::now(); seconds_since(now) < 0.02;) {
          }
          if (in_turn) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
          }
        }
        world.everyone().barrier();
      },
      shared, 0.4);
  INFO(outcome.errors);
  CHECK(outcome.code == 7);
  CHECK(shared->asked == 0);
  CHECK(shared->starts == 2);
}

TEST_CASE("what may not start again ends with its error, printed once") {
  const auto failing = [](ErrorKind kind) {
    return [kind](World& world) {
      if (world.rank() == 1) {
        if (kind == ErrorKind::input) {
          fail_input("a wrong input");
        }
        fail("a fault again");
      }
    };
  };
  Shared* shared = nullptr;
  const Outcome refused = healing(2, failing(ErrorKind::run), shared, 0, 0);
  CHECK(refused.code == 7);  // the first attempt was good
  CHECK(shared->asked == 0);
  const Outcome input = healing(2, failing(ErrorKind::input), shared);
  INFO(input.errors);
  CHECK(input.code == 2);
  CHECK(shared->asked == 0);
  CHECK(contains(input.errors, "a wrong input"));
  const Outcome again = healing(
      2,
      [](World& world) {
        if (world.rank() == 1) {
          fail("a fault for good");
        }
      },
      shared, 0, 3);
  CHECK(again.code == 7);
  CHECK(shared->asked == 3);
}
