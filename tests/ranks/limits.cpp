// Limits of shared memory and of processes: far away, or an error that says what to do.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;

#include "processes.hpp"

using namespace collective_test;

namespace {

Outcome limited(int resource, rlim_t value, const std::function<int()>& body) {
  return as_program([&] {
    const rlimit limit{value, value};
    setrlimit(resource, &limit);
    return body();
  });
}

/// Address space that this process uses already, in bytes.
rlim_t used_address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

int reduces(World& world) {
  reduce_one(world);
  return 0;
}

}  // namespace

TEST_CASE("each rank's code sees its number without setting it") {
  run_threads(3, [](World& world) {
    if (current_rank() != world.rank()) {
      fail("a thread has another rank");
    }
  });
  CHECK(current_rank() == 0);
  for (const int ranks : {1, 3}) {
    CHECK(launch({.ranks = ranks, .print_error = false}, [](World& world) {
            int in_thread = -1;
            std::thread([&] { in_thread = current_rank(); }).join();
            return current_rank() == world.rank() && in_thread == world.rank() ? 0 : 1;
          }) == 0);
  }
  CHECK(current_rank() == 0);
}

TEST_CASE("there may be more shared buffers than any table has entries at first") {
  constexpr std::size_t buffers = 6000;  // of each rank; all ranks share one table
  CHECK(launch({.ranks = 2}, [](World& world) {
          std::vector<SharedBuffer> held;
          for (std::size_t i = 0; i < buffers; ++i) {
            held.push_back(world.allocate(17 * 4096));  // small ones share extents
            std::memcpy(held.back().data(), &i, sizeof(i));
          }
          world.everyone().barrier();
          std::size_t errors = 0;
          for (std::size_t i = 0; i < buffers; ++i) {
            std::size_t found = 0;
            std::memcpy(&found, held[i].data(), sizeof(found));
            errors += found == i ? 0 : 1;
            if (i % 3 != 0) {
              held[i] = {};
            }
          }
          for (std::size_t i = 0; i < 100; ++i) {
            const SharedBuffer buffer = world.allocate(std::size_t{1} << 16);
            errors += buffer.data()[0] == std::byte{0} ? 0 : 1;
          }
          for (std::size_t i = 0; i < buffers; i += 3) {
            std::size_t found = 0;
            std::memcpy(&found, held[i].data(), sizeof(found));
            errors += found == i ? 0 : 1;
          }
          return errors == 0 ? 0 : 1;
        }) == 0);
}

TEST_CASE("what a run needs is compared with what there is before any rank starts") {
  const Outcome outcome = as_program([] {
    return launch(
        {.ranks = 2, .arena_bytes = std::size_t{64} << 20, .needed_bytes = std::size_t{65} << 20},
        [](World&) -> int {
          std::fputs("started", stderr);
          return 0;
        });
  });
  CHECK(
      outcome.errors ==
      "thrown: launch: 2 ranks need 65.0 MiB of shared memory and there is room for 64.0 MiB; use "
      "fewer parameters, a machine with more memory, or raise `ulimit -v` and `ulimit -f`\n");
  const Outcome many = as_program([] {
    run_threads(100'000, [](World&) {}, {.arena_bytes = std::size_t{64} << 20});
    return 0;
  });
  CHECK(contains(many.errors, "100000 ranks do not fit into 64.0 MiB of shared memory"));
}

TEST_CASE("all ranks may send any number of messages before they receive") {
  CHECK(launch({.ranks = 3, .timeout_seconds = 20}, [](World& world) {
          Communicator& c = world.everyone();
          constexpr int messages = 200;  // to each rank, this one included
          const auto length = [](int i) { return i % 5 * 1000 + 1; };
          int errors = 0;
          for (int round = 0; round < 3; ++round) {
            for (int i = 0; i < messages; ++i) {
              const std::vector<int> values(static_cast<std::size_t>(length(i)),
                                            1000 * c.rank() + i);
              for (int to = 0; to < c.size(); ++to) {
                c.send(values.data(), length(i), DType::i32, to, i % 2);
              }
            }
            for (int from = 0; from < c.size(); ++from) {
              for (const int tag : {1, 0}) {
                for (int i = tag; i < messages; i += 2) {
                  std::vector<int> values(static_cast<std::size_t>(length(i)));
                  c.receive(values.data(), length(i), DType::i32, from, tag);
                  errors += values == std::vector<int>(values.size(), 1000 * from + i) ? 0 : 1;
                }
              }
            }
          }
          return errors == 0 ? 0 : 1;
        }) == 0);
}

TEST_CASE("messages for which there is no room are an error with the numbers") {
  const Outcome outcome = as_program([] {
    return launch({.ranks = 2, .arena_bytes = std::size_t{64} << 20}, [](World& world) {
      const std::vector<float> values(std::size_t{1} << 18);
      for (int i = 0; world.rank() == 0 && i < 100; ++i) {
        world.everyone().send(values.data(), std::ssize(values), DType::f32, 1);
      }
      world.everyone().barrier();
      return 0;
    });
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors, "shared memory: no room for 1.0 MiB more"));
  CHECK(contains(outcome.errors, "of 64.0 MiB"));
}

TEST_CASE("a buffer for which there is no room is an error with the numbers") {
  const Outcome outcome = as_program([] {
    return launch({.ranks = 2, .arena_bytes = std::size_t{64} << 20}, [](World& world) {
      const SharedBuffer half = world.allocate(std::size_t{20} << 20);
      world.everyone().barrier();
      if (world.rank() == 1) {
        world.allocate(std::size_t{40} << 20);
      }
      return reduces(world);
    });
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(contains(outcome.errors,
                 "error: rank 1: shared memory: no room for 40.0 MiB more (all ranks "
                 "together use 4"));
  CHECK(contains(outcome.errors, "of 64.0 MiB)"));
}

TEST_CASE("limits of the system are errors that say which one to raise") {
  const rlim_t used = used_address_space();
  const auto two_ranks = [] { return launch({.ranks = 2}, reduces); };
  CHECK(limited(RLIMIT_AS, used + (rlim_t{1} << 30), two_ranks).code == 0);
  const Outcome space = limited(RLIMIT_AS, used + (rlim_t{60} << 20), two_ranks);
  INFO(space.errors);
  CHECK(contains(space.errors, "ulimit -v"));
  CHECK(limited(RLIMIT_FSIZE, 4096, two_ranks).code == 0);
  const Outcome file = limited(RLIMIT_FSIZE, 4096, [] {
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("TESSERA_JOB", "limits", 1);
    return join_launch({.ranks = 2, .timeout_seconds = 1}, reduces);
  });
  CHECK(contains(file.errors, "ulimit -f"));
}

TEST_CASE("ranks that this program starts need no transport") {
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      try {
        return launch({.ranks = ranks, .transport = "mpi"}, [](World&) { return 0; });
      } catch (const Error& error) {
        std::fputs(error.what(), stderr);
        return 2;
      }
    });
    INFO(outcome.errors);
    CHECK(outcome.code == 2);
    CHECK(contains(outcome.errors, "the transport 'mpi' connects ranks of several machines"));
  }
}
