// Many more ranks than cores: what each rank does must not grow with the number of the others, and
// what the machine has no room for is refused before any rank starts.
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
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

/// Every kind of wait: for the lock of the shared memory, for calls of several groups at once, for
/// messages. Returns the number of wrong results.
int work_of(World& world) {
  Communicator& all = world.everyone();
  const int size = all.size();
  const int rank = all.rank();
  int errors = 0;
  std::vector<SharedBuffer> buffers;
  for (int i = 0; i < 10; ++i) {
    buffers.push_back(world.allocate(std::size_t{64} << 10));
    if (i % 2 == 0) {
      buffers.pop_back();
    }
  }
  Communicator& other = world.communicator(all.global_ranks(), "other");
  for (int round = 0; round < 5; ++round) {
    const std::int64_t mine = rank + round;
    std::int64_t sum = 0;
    std::vector<std::int64_t> gathered(static_cast<std::size_t>(size));
    Work in_flight = other.all_gather_async(&mine, gathered.data(), 1, DType::i64);
    all.all_reduce(&mine, &sum, 1, DType::i64);
    in_flight.wait();
    errors += sum == std::int64_t{size} * (size - 1) / 2 + std::int64_t{size} * round ? 0 : 1;
    for (int r = 0; r < size; ++r) {
      errors += gathered[static_cast<std::size_t>(r)] == r + round ? 0 : 1;
    }
    all.send(&mine, 1, DType::i64, (rank + 1) % size);
    std::int64_t before = -1;
    all.receive(&before, 1, DType::i64, (rank + size - 1) % size);
    errors += before == (rank + size - 1) % size + round ? 0 : 1;
    all.barrier();
  }
  return errors;
}

void run_many(int ranks, double limit) {
  const Outcome outcome = as_program([&] {
    return launch({.ranks = ranks, .timeout_seconds = limit},
                  [](World& world) { return work_of(world) == 0 ? 0 : 3; });
  });
  INFO(ranks << " ranks: " << outcome.seconds << " s: " << outcome.errors);
  CHECK(outcome.code == 0);
  if (ranks < 100) {
    CHECK(outcome.errors.empty());  // no wait was so long that it was reported
  }
  CHECK(outcome.seconds < limit);
}

/// Bytes of the heap that a rank needs of its own, when all have met and summed.
double heap_of_rank(int ranks) {
  const std::size_t before = mallinfo2().uordblks;
  std::size_t after = 0;
  run_threads(ranks, [&](World& world) {
    const std::int64_t one = 1;
    std::int64_t sum = 0;
    world.everyone().all_reduce(&one, &sum, 1, DType::i64);
    world.everyone().barrier();
    if (world.rank() == 0) {
      after = mallinfo2().uordblks;
    }
    world.everyone().barrier();
  });
  return static_cast<double>(after - before) / ranks;
}

}  // namespace

TEST_CASE("the memory that a rank needs of its own does not grow with the ranks") {
  const double few = heap_of_rank(64);
  const double many = heap_of_rank(640);
  INFO(few << " bytes with 64 ranks, " << many << " with 640");
  CHECK(many < few + 2 * 576);  // two bytes for each further rank would be too many
}

TEST_CASE("64 ranks share memory, groups and messages, and none waits long") { run_many(64, 30); }

TEST_CASE("512 ranks share memory, groups and messages", "[.long]") { run_many(512, 120); }

TEST_CASE("most pairs of a large group never talk, and need no memory") {
  // A channel for each pair would take 256^2 times more than 1.5 KiB, which is 96 MiB.
  CHECK(launch({.ranks = 256, .arena_bytes = std::size_t{64} << 20}, [](World& world) {
          const int next = (world.rank() + 1) % world.size();
          world.everyone().send(&next, 1, DType::i32, next);
          int own = -1;
          world.everyone().receive(&own, 1, DType::i32,
                                   (world.rank() + world.size() - 1) % world.size());
          world.everyone().barrier();
          return own == world.rank() ? 0 : 3;
        }) == 0);
}

TEST_CASE("errors of many ranks are short") {
  const Outcome outcome = as_program([] {
    return launch({.ranks = 64}, [](World& world) {
      world.everyone().barrier();
      if (world.rank() == 40) {
        float x = 0;
        world.everyone().all_reduce(&x, &x, 1, DType::f32);
      } else {
        world.everyone().barrier();
      }
      return 0;
    });
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, "of group [0 to 63]"));
  CHECK(contains(outcome.errors, "ranks 0 to 39 and 41 to 63:\n  barrier(), call 0"));
  CHECK(
      contains(outcome.errors, "rank 40:\n  barrier(), call 0 of group [0 to 63]\n  all_reduce("));
  CHECK(outcome.errors.size() < 2000);
}

TEST_CASE("ranks for which a machine has no room are refused before any starts") {
  const auto refused = [](const LaunchOptions& options) {
    return as_program([&] {
             return launch(options, [](World&) {
               std::fputs("started", stderr);
               return 0;
             });
           })
        .errors;
  };
  const std::string memory = refused({.ranks = 64, .rank_bytes = std::size_t{1} << 40});  // 64 TiB
  INFO(memory);
  CHECK(contains(memory, "thrown: launch: 64 ranks need at least 64.0 TiB"));
  CHECK(contains(memory, "the machine's memory is"));
  CHECK(!contains(memory, "started"));
  const std::string tasks = refused({.ranks = 5'000'000});
  INFO(tasks);
  CHECK(contains(tasks, "5000000 ranks need 15000000 processes and threads, and the "));
  CHECK(!contains(tasks, "started"));

  const Outcome user = as_program([] {
    if (getuid() == 0 && setuid(65534) != 0) {
      return 98;
    }
    const rlimit few{40, 40};
    setrlimit(RLIMIT_NPROC, &few);
    return launch({.ranks = 64, .rank_threads = 2}, [](World&) { return 0; });
  });
  INFO(user.errors);
  CHECK(contains(user.errors,
                 "64 ranks need 256 processes and threads, and this user's limit on "
                 "processes (`ulimit -u`) leaves "));
}
