// What happens when ranks disagree, stall, throw or die.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.collective;

using namespace tessera;
using namespace tessera::collective;

#include "processes.hpp"

using namespace collective_test;

namespace {

/// The error that run_threads throws, or "".
std::string error_on_ranks(int ranks, int machines, const std::function<void(World&)>& run,
                           double timeout = 20) {
  try {
    run_threads(ranks, run, {.timeout_seconds = timeout, .machines = machines});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("calls that differ are an error that shows both sides") {
  const int machines = GENERATE(1, 2);
  INFO(machines << " machines");
  const std::string error = error_on_ranks(2, machines, [](World& world) {
    reduce_one(world);
    std::vector<float> x(128);
    if (world.rank() == 1) {
      world.everyone().all_reduce(x.data(), x.data(), 128, DType::f32);
    } else {
      world.everyone().barrier();
    }
  });
  INFO(error);
  CHECK(contains(error, "rank 0 calls barrier() while rank 1 calls all_reduce(f32, 128, sum)"));
  CHECK(contains(error, "call 1 of group [0, 1]"));

  const std::string counts = error_on_ranks(3, machines, [](World& world) {
    std::vector<float> x(16);
    world.everyone().broadcast(x.data(), world.rank() == 2 ? 7 : 8, DType::f32, 0);
  });
  INFO(counts);
  CHECK(contains(counts, "broadcast(f32, 8, root 0)"));
  CHECK(contains(counts, "broadcast(f32, 7, root 0)"));

  const std::string unequal = error_on_ranks(2, machines, [](World& world) {
    std::vector<float> x(16);
    const std::vector<std::int64_t> sends = {2, 2};
    const std::vector<std::int64_t> receives = {2, world.rank() == 0 ? 3 : 2};
    world.everyone().all_to_all(x.data(), sends, x.data() + 8, receives, DType::f32);
  });
  CHECK(contains(unequal, "rank 1 sends 2 elements to rank 0, which expects 3"));

  const std::string scattered = error_on_ranks(2, machines, [](World& world) {
    std::vector<float> x(16);
    const std::vector<std::int64_t> counts = {2, 5};
    world.everyone().scatter(x.data(), counts, x.data() + 8, world.rank() == 0 ? 2 : 4, DType::f32,
                             0);
  });
  CHECK(contains(scattered,
                 "scatter with counts: rank 0 sends 5 elements to rank 1, which expects 4"));
}

TEST_CASE("a mismatch fails every rank") {
  const int machines = GENERATE(1, 2);
  INFO(machines << " machines");
  std::atomic<int> stopped = 0;
  error_on_ranks(4, machines, [&](World& world) {
    std::vector<float> x(64);
    try {
      const std::int64_t count = world.rank() == 3 ? 63 : 64;
      world.everyone().all_reduce(x.data(), x.data(), count, DType::f32);
      world.everyone().barrier();
    } catch (const Error&) {
      ++stopped;
      throw;
    }
  });
  CHECK(stopped == 4);
}

TEST_CASE("a wait that lasts too long says who waits for whom in what") {
  const int machines = GENERATE(1, 2);
  INFO(machines << " machines");
  const std::string error = error_on_ranks(
      2, machines,
      [](World& world) {
        reduce_one(world);
        if (world.rank() == 0) {
          world.everyone().barrier();
        } else {
          while (!world.failed()) {
            usleep(1000);
          }
        }
      },
      0.5);
  INFO(error);
  CHECK(contains(error, "barrier(), call 1 of group [0, 1]: rank 0 has waited"));
  CHECK(contains(error, "for rank 1; the last call of rank 1: all_reduce(f32, 1, sum), call 0"));
}

TEST_CASE("a rank that has ended is not waited for") {
  const int machines = GENERATE(1, 2);
  INFO(machines << " machines");
  const auto begin = Clock::now();
  const std::string error = error_on_ranks(2, machines, [](World& world) {
    if (world.rank() == 0) {
      world.everyone().barrier();
    }
  });
  INFO(error);
  CHECK(contains(error, "rank 0 waits for rank 1, which has ended"));
  CHECK(seconds_since(begin) < 5);
}

TEST_CASE("an error in one rank stops those who wait anywhere, and is the one that is thrown") {
  const int machines = GENERATE(1, 2);
  INFO(machines << " machines");
  const auto begin = Clock::now();
  std::atomic<int> peers = 0;
  const std::string error = error_on_ranks(4, machines, [&](World& world) {
    if (world.rank() == 2) {
      usleep(50'000);
      fail("the disk is on fire");
    }
    try {
      if (world.rank() == 0) {
        float x;
        world.everyone().receive(&x, 1, DType::f32, 2);
      } else if (world.rank() == 1) {
        world.communicator(std::vector<int>{1, 2}).barrier();
      } else {
        reduce_one(world);
      }
    } catch (const PeerFailed& stopped) {
      peers += stopped.fields().rank == 2 ? 1 : 0;
      throw;
    }
  });
  CHECK(error == "the disk is on fire");
  CHECK(peers == 3);
  CHECK(seconds_since(begin) < 5);
}

TEST_CASE("the launcher's exit code is the first error's, and the error is printed once") {
  const Outcome input = as_program([] {
    return launch({.ranks = 3}, [](World& world) {
      world.set_progress(7, "model.layers.3");
      if (world.rank() == 1) {
        fail_input("config: no such key");
      }
      reduce_one(world);
      return 0;
    });
  });
  CHECK(input.code == 2);
  CHECK(input.errors == "error: rank 1, step 7, model.layers.3: config: no such key\n");
  CHECK(launch({.ranks = 2, .print_error = false}, [](World& world) -> int {
          if (world.rank() == 0) {
            throw std::runtime_error("foreign");
          }
          world.everyone().barrier();
          return 0;
        }) == 1);
  CHECK(launch({.ranks = 2}, [](World& world) { return world.rank() == 1 ? 5 : 0; }) == 5);
  CHECK(launch({.ranks = 2}, [](World& world) {
          usleep(world.rank() == 0 ? 300'000 : 0);  // a rank that ends well ends last
          return world.rank() == 1 ? 5 : 0;
        }) == 5);
  CHECK(launch({.ranks = 1, .print_error = false}, [](World&) -> int { fail_input("x"); }) == 2);
}

TEST_CASE("a rank that is killed takes the others along, with rank and step in the message") {
  const Outcome outcome = as_program([] {
    return launch({.ranks = 3}, [](World& world) {
      for (int step = 0;; ++step) {
        world.set_progress(step, "forward");
        reduce_one(world);
        if (step == 20 && world.rank() == 1) {
          kill(getpid(), SIGKILL);
        }
      }
      return 0;
    });
  });
  INFO(outcome.errors);
  CHECK(outcome.code == 1);
  CHECK(outcome.seconds < 5);
  CHECK(contains(outcome.errors, "rank 1 was killed by signal 9"));
  CHECK(contains(outcome.errors, "at step 20 in forward"));
  CHECK(contains(outcome.errors, "call 20 of group [0, 1, 2]"));
  CHECK(left_in_shared_memory().empty());
}

TEST_CASE("a rank that does not end is killed after the grace time") {
  const Outcome outcome = as_program([] {
    return launch({.ranks = 2, .grace_seconds = 0.3}, [](World& world) -> int {
      if (world.rank() == 0) {
        fail("first");
      }
      while (true) {
        usleep(10'000);
      }
    });
  });
  CHECK(outcome.code == 1);
  CHECK(outcome.errors == "error: rank 0: first\n");
  CHECK(outcome.seconds < 4);
}

TEST_CASE("when the launcher is killed its ranks end") {
  const Outcome outcome = as_program([] {
    return launch({.ranks = 2}, [](World& world) {
      world.everyone().barrier();
      if (world.rank() == 0) {
        kill(getppid(), SIGKILL);
      }
      while (true) {
        reduce_one(world);
      }
      return 0;
    });
  });
  CHECK(outcome.code == 1000 + SIGKILL);
  CHECK(outcome.seconds < 5);  // as_program returns when the last rank has closed the pipe
  CHECK(left_in_shared_memory().empty());
}

TEST_CASE("the bench measures what it says") {
  run_threads(2, [](World& world) {
    const auto rates = measure_collectives(world.everyone(), {std::size_t{64} << 10});
    if (rates.size() != 7 || rates[0].received_bytes != 32768 || !(rates[0].seconds > 0) ||
        !(rates[2].memcpy_seconds > 0)) {
      fail("bench: figures are missing");
    }
  });
}
