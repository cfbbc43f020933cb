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

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The error that run_threads throws, or "".
std::string error_of(int ranks, const std::function<void(World&)>& run, double timeout = 20) {
  try {
    run_threads(ranks, run, {.timeout_seconds = timeout});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Outcome {
  int code = 0;
  std::string errors;  // what stood on stderr
  double seconds = 0;
};

/// Runs `body` in a process of its own, as a program would.
Outcome as_program(const std::function<int()>& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const auto begin = Clock::now();
  std::fflush(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    int code = 99;
    try {
      code = body();
    } catch (const Error& error) {
      std::fprintf(stderr, "thrown: %s\n", error.what());
    }
    _exit(code);
  }
  close(ends[1]);
  Outcome outcome;
  char buffer[4096];
  // Ends when the last process that holds the pipe has ended: no rank may stay behind.
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    outcome.errors.append(buffer, static_cast<std::size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  outcome.seconds = seconds_since(begin);
  return outcome;
}

/// Names in /dev/shm that this library made.
std::vector<std::string> left_in_shared_memory() {
  std::vector<std::string> names;
  if (std::filesystem::exists("/dev/shm")) {
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (contains(entry.path().filename().string(), "tessera")) {
        names.push_back(entry.path().filename().string());
      }
    }
  }
  return names;
}

void reduce_one(World& world) {
  float x = 1;
  world.everyone().all_reduce(&x, &x, 1, DType::f32);
}

}  // namespace

TEST_CASE("calls that differ are an error that shows both sides") {
  const std::string error = error_of(2, [](World& world) {
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

  const std::string counts = error_of(3, [](World& world) {
    std::vector<float> x(16);
    world.everyone().broadcast(x.data(), world.rank() == 2 ? 7 : 8, DType::f32, 0);
  });
  INFO(counts);
  CHECK(contains(counts, "broadcast(f32, 8, root 0)"));
  CHECK(contains(counts, "broadcast(f32, 7, root 0)"));

  const std::string unequal = error_of(2, [](World& world) {
    std::vector<float> x(16);
    const std::vector<std::int64_t> sends = {2, 2};
    const std::vector<std::int64_t> receives = {2, world.rank() == 0 ? 3 : 2};
    world.everyone().all_to_all(x.data(), sends, x.data() + 8, receives, DType::f32);
  });
  CHECK(contains(unequal, "rank 1 sends 2 elements to rank 0, which expects 3"));
}

TEST_CASE("a mismatch fails every rank") {
  std::atomic<int> stopped = 0;
  error_of(4, [&](World& world) {
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
  const std::string error = error_of(
      2,
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
      0.3);
  INFO(error);
  CHECK(contains(error, "barrier(), call 1 of group [0, 1]: rank 0 has waited"));
  CHECK(contains(error, "for rank 1; the last call of rank 1: all_reduce(f32, 1, sum), call 0"));
}

TEST_CASE("a rank that has ended is not waited for") {
  const auto begin = Clock::now();
  const std::string error = error_of(2, [](World& world) {
    if (world.rank() == 0) {
      world.everyone().barrier();
    }
  });
  INFO(error);
  CHECK(contains(error, "rank 0 waits for rank 1, which has ended"));
  CHECK(seconds_since(begin) < 5);
}

TEST_CASE("an error in one rank stops those who wait anywhere, and is the one that is thrown") {
  const auto begin = Clock::now();
  std::atomic<int> peers = 0;
  const std::string error = error_of(4, [&](World& world) {
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
    } catch (const PeerFailed&) {
      ++peers;
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

TEST_CASE("an interrupt is a request to the ranks, a second one ends them") {
  const auto stop_together = [](World& world) {
    float stop = 0;
    while (stop == 0) {
      stop = world.interrupt_requested() ? 1 : 0;
      world.everyone().all_reduce(&stop, &stop, 1, DType::f32, ReduceOp::max);
    }
    return 130;
  };
  for (const int ranks : {1, 2}) {
    const Outcome outcome = as_program([&] {
      const pid_t parent = getpid();
      return launch({.ranks = ranks}, [&](World& world) {
        if (world.rank() == 0) {
          usleep(50'000);
          kill(parent, SIGINT);
        }
        return stop_together(world);
      });
    });
    CHECK(outcome.code == 130);
    CHECK(outcome.errors.empty());
  }
  const Outcome stubborn = as_program([] {
    const pid_t parent = getpid();
    return launch({.ranks = 2}, [&](World& world) -> int {
      if (world.rank() == 0) {
        kill(parent, SIGINT);
        usleep(200'000);
        kill(parent, SIGINT);
      }
      while (true) {
        usleep(1000);
      }
    });
  });
  CHECK(stubborn.code == 130);
  CHECK(stubborn.seconds < 4);
}

TEST_CASE("ranks that another launcher started meet by name and leave nothing behind") {
  const std::string job = "test-" + std::to_string(getpid());
  const auto start = [&](int rank, int size, int local_size) {
    return as_program([&] {
      setenv("TESSERA_JOB", job.c_str(), 1);
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
      setenv("LOCAL_WORLD_SIZE", std::to_string(local_size).c_str(), 1);
      if (!launched_by_other()) {
        return 98;
      }
      return join_launch({.ranks = size, .timeout_seconds = 10}, [&](World& world) {
        std::vector<float> x(300'000, static_cast<float>(world.rank()));
        world.everyone().all_reduce(x.data(), x.data(), 300'000, DType::f32);
        if (x[299'999] != 3) {
          return 97;
        }
        if (world.rank() == 1 && job.ends_with("fails")) {
          fail("rank one gives up");
        }
        world.everyone().barrier();
        return 0;
      });
    });
  };
  const auto start_all = [&] {
    std::vector<Outcome> outcomes(3);
    std::vector<pid_t> unused;
    // as_program blocks: the other ranks are started by a process each.
    outcomes[0] = as_program([&] {
      std::vector<pid_t> others;
      for (int rank = 1; rank < 3; ++rank) {
        const pid_t child = fork();
        if (child == 0) {
          const Outcome outcome = start(rank, 3, 3);
          std::fputs(outcome.errors.c_str(), stderr);
          _exit(outcome.code);
        }
        others.push_back(child);
      }
      const Outcome own = start(0, 3, 3);
      std::fputs(own.errors.c_str(), stderr);
      int code = own.code;
      for (const pid_t child : others) {
        int status = 0;
        waitpid(child, &status, 0);
        code = std::max(code, WEXITSTATUS(status));
      }
      return code;
    });
    return outcomes[0];
  };
  const Outcome good = start_all();
  CHECK(good.code == 0);
  CHECK(good.errors.empty());
  CHECK(left_in_shared_memory().empty());
  const Outcome split = start(0, 3, 2);
  CHECK(contains(split.errors, "all ranks must be on one machine (WORLD_SIZE is 3"));
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
