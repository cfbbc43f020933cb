// Ranks for tests with several machines: mpirun, or several of its own launchers, start them, and
// the argument says what they do.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "thread_signals.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.collective;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.tensor;

#include "brute_force.hpp"

namespace {

using namespace collective_test;

void reduce_one(World& world) {
  float x = 1;
  world.everyone().all_reduce(&x, &x, 1, DType::f32);
  check(x == static_cast<float>(world.size()), "a sum of ones");
}

/// Every collective, messages both ways and groups across machines.
int collectives(World& world) {
  Communicator& c = world.everyone();
  check_all(c);
  for (const bool shared : {true, false}) {
    check_segments(c, shared);
    check_terms(c, shared);
  }
  for (const int memory : {0, 1, 2}) {
    check_in_place(c, DType::f32, memory);
  }
  const int n = world.size();
  std::vector<float> out(100'000, static_cast<float>(world.rank()));
  std::vector<float> in(out.size());
  const int next = (world.rank() + 1) % n;
  const int before = (world.rank() + n - 1) % n;
  for (int round = 0; round < 10; ++round) {
    c.send(out.data(), static_cast<std::int64_t>(out.size()), DType::f32, next, round % 2);
    Work work = c.receive_async(in.data(), static_cast<std::int64_t>(in.size()), DType::f32, before,
                                round % 2);
    work.wait();
    check(in[99'999] == static_cast<float>(before), "a message from the rank before");
  }
  const std::vector<int> apart = {world.rank() % 2, world.rank() % 2 + 2};
  if (n == 4) {
    check_all(world.communicator(apart));
  }
  for (int i = 0; i < 2000; ++i) {
    reduce_one(world);
  }
  return 0;
}

int differ(World& world) {
  reduce_one(world);
  if (world.rank() == 1) {
    reduce_one(world);
  } else {
    world.everyone().barrier();
  }
  return 0;
}

int exception(World& world) {
  world.set_progress(7, "model.layers.3");
  reduce_one(world);
  if (world.rank() == world.size() - 1) {
    fail_input("config: no such key");
  }
  reduce_one(world);
  return 0;
}

int killed(World& world) {
  for (int step = 0;; ++step) {
    world.set_progress(step, "forward");
    reduce_one(world);
    if (step == 20 && world.rank() == world.size() - 1) {
      usleep(300'000);  // the others are told what this rank does a few times a second
      kill(getpid(), SIGKILL);
    }
  }
  return 0;
}

/// The last rank crashes.
int crashed(World& world) {
  world.set_progress(3, "forward");
  reduce_one(world);
  if (world.rank() == world.size() - 1) {
    usleep(300'000);
    raise(SIGSEGV);
  }
  world.everyone().barrier();
  return 0;
}

int ended(World& world) {
  reduce_one(world);
  if (world.rank() == 0) {
    world.everyone().barrier();
  }
  return 0;
}

int late(World& world) {
  reduce_one(world);
  world.set_timeout(1);
  if (world.rank() == 0) {
    world.everyone().barrier();
  }
  while (!world.failed()) {
    usleep(1000);
  }
  world.throw_if_failed();
  return 0;
}

/// One rank is asked to stop; all learn of it. The threads of MPI take no signals of the run.
int stopped(World& world) {
  reduce_one(world);
  const auto threads = testing::thread_signals(getpid());
  check(threads.size() >= 3, "a thread of the rank, one of the transport and one for signals");
  const std::string open = testing::interruptible(threads);
  check(open.empty(), open);
  if (world.rank() == world.size() - 1) {
    kill(getpid(), SIGUSR1);
  }
  while (!world.interrupt_requested()) {
    usleep(1000);
  }
  check(world.interrupt_agreed(), "all ranks agree");
  return 0;
}

/// The shortest of many times that calls with four bytes take, in microseconds.
double small_call(const std::function<void()>& call) {
  double shortest = 1e9;
  constexpr int calls = 200;
  for (int round = 0; round < 30; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) {
      call();
    }
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    shortest = std::min(shortest, took.count() / calls);
  }
  return shortest;
}

int measured(World& world) {
  Communicator& c = world.everyone();
  float x = 1;
  const double reduced = small_call([&] { c.all_reduce(&x, &x, 1, DType::f32); });
  const double answered = small_call([&] {  // between the first rank and the last one
    const int last = world.size() - 1;
    if (world.rank() == 0) {
      c.send(&x, 1, DType::f32, last, 0);
      c.receive_async(&x, 1, DType::f32, last, 0).wait();
    } else if (world.rank() == last) {
      c.receive_async(&x, 1, DType::f32, 0, 0).wait();
      c.send(&x, 1, DType::f32, 0, 0);
    }
  });
  if (world.rank() == 0) {
    std::printf("%-28s %9d %10.1f us\n%-28s %9d %10.1f us\n", "all_reduce", 4, reduced,
                "message and answer", 4, answered);
  }
  const auto rates = measure_collectives(world.everyone());
  if (world.rank() == 0) {
    for (const CollectiveRate& rate : rates) {
      std::printf("%-28s %9zu %10.1f us %8.2f GB/s", rate.name.c_str(), rate.bytes,
                  rate.seconds * 1e6, rate.received_bytes / rate.seconds / 1e9);
      if (rate.share_of_memcpy <= 1) {  // else memcpy was measured while the machine was busy
        std::printf("  %5.1f%% of memcpy", 100 * rate.share_of_memcpy);
      }
      std::printf("\n");
    }
  }
  return 0;
}

constexpr std::int64_t rows_per_rank = 1000;
constexpr std::int64_t columns = 250;

/// A megabyte of a rank's numbers at a step.
std::vector<float> numbers(int rank, std::int64_t step) {
  std::vector<float> values(static_cast<std::size_t>(rows_per_rank * columns));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((static_cast<std::size_t>(step) * 31 + i) % 1009) +
                static_cast<float>(2000 * rank);
  }
  return values;
}

StateDict state_of(const World& world, std::int64_t step) {
  const Layout layout = Layout::make(DeviceMesh::make({"rows"}, {world.size()}), {Shard(0)});
  const std::vector<float> values = numbers(world.rank(), step);
  StateDict state;
  state.tensors["rows"] =
      make_distributed(from_values(std::span<const float>(values), {rows_per_rank, columns}),
                       Spec::make(layout, {rows_per_rank * world.size(), columns}, DType::f32));
  state.scalars["step"] = step;
  return state;
}

/// Steps whose states are kept, here and on the next machine. Each start checks what was kept.
int heals(LaunchOptions options) {
  constexpr std::int64_t steps = 400;
  const LauncherPlace place = options.place.value();
  const int here = place.ranks_of(options.ranks);
  const int before = (place.machine + place.machines - 1) % place.machines;
  MemoryStateStore own(options.ranks, place.machine * here, here);
  MemoryStateStore of_other(options.ranks, before * here, here);
  own.expect_copies();
  std::int64_t from = -1;
  options.kept = &own;
  options.kept_of_other = &of_other;
  options.replace_seconds = 10;
  options.stuck_seconds = 5;
  options.grace_seconds = 1;
  options.restart = [&](const FailedAttempt& failed) {
    own.drop_after(failed.kept);
    of_other.drop_after(failed.kept);
    from = failed.kept;
    std::printf("%s after step %d\n", failed.joins ? "joins" : "starts again",
                static_cast<int>(from));
    std::fflush(stdout);
    return from >= 0;
  };
  return launch(options, [&](World& world) {
    if (from >= 0) {
      const Tensor rows = full({rows_per_rank, columns}, 0);
      own.open()->read("rows", {{rows_per_rank * world.rank(), 0}, {rows_per_rank, columns}}, rows);
      const std::vector<float> expected = numbers(world.rank(), from);
      const std::vector<double> read = to_doubles(rows);
      check(std::equal(read.begin(), read.end(), expected.begin(), expected.end()),
            "what was kept is what the step had");
    }
    for (std::int64_t step = from + 1; step <= steps; ++step) {
      world.set_progress(step, "forward");
      reduce_one(world);
      own.keep(step, state_of(world, step));
      if (step == from + 20 && world.rank() == 0) {
        std::printf("it goes on\n");
        std::fflush(stdout);
      }
      usleep(1000);
    }
    world.everyone().barrier();
    std::printf("rank %d is done\n", world.rank());
    return 0;
  });
}

}  // namespace

int main(int arguments, char** values) {
  const std::map<std::string, int (*)(World&)> bodies = {
      {"collectives", collectives}, {"differ", differ},   {"exception", exception},
      {"killed", killed},           {"ended", ended},     {"late", late},
      {"crashed", crashed},         {"stopped", stopped}, {"measured", measured}};
  if (arguments < 3 || (!bodies.contains(values[1]) && std::string(values[1]) != "heals")) {
    std::fprintf(stderr, "usage: machines_rank WHAT RANKS [TRANSPORT]\n");
    return 2;
  }
  try {
    const LaunchOptions options{.ranks = std::stoi(values[2]),
                                .timeout_seconds = 20,
                                .transport = arguments > 3 ? values[3] : "auto",
                                .place = launcher_place()};
    if (std::string(values[1]) == "heals") {
      return heals(options);
    }
    const auto body = bodies.at(values[1]);
    return options.place ? launch(options, body) : join_launch(options, body);
  } catch (const Error& error) {
    report_refusal(error.what(), error.kind(),
                   [&] { std::fprintf(stderr, "error: %s\n", error.what()); });
    return error.kind() == ErrorKind::input ? 2 : 1;
  }
}
