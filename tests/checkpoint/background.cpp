// Saves in the background: what they hold, what delays them, and how they fail.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.collective;
import tessera.device;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.tensor;

#include "../support/errors.hpp"

using namespace tessera;
using namespace checkpoint_test;
using tessera::testing::check;

namespace {

Tensor tensor_on(int ranks, Placement placement, double value, std::int64_t elements) {
  const SpecHandle spec = Spec::make(Layout::make(DeviceMesh::make({"axis"}, {ranks}), {placement}),
                                     {elements}, DType::f32);
  return make_distributed(full(local_shape(*spec), value), spec);
}

/// One vector cut over the ranks, one that all of them hold, and a scalar.
StateDict state_of(int ranks, double value, std::int64_t elements = 10) {
  StateDict state;
  state.tensors["cut"] = tensor_on(ranks, Shard(0), value, elements);
  state.tensors["same"] = tensor_on(ranks, Replicate(), value + 1, 6);
  state.scalars["step"] = static_cast<std::int64_t>(value);
  return state;
}

void fill(const StateDict& state, double value) {
  for (const auto& [name, tensor] : state.tensors) {
    ops::fill_(tensor.local(), value);
  }
}

bool holds(const std::string& path, double value) {
  const CheckpointReader reader(path);
  const auto is = [&](const char* name, double expected) {
    const std::vector<double> values = to_doubles(reader.read(name));
    return std::all_of(values.begin(), values.end(), [&](double x) { return x == expected; });
  };
  return reader.verify().empty() && is("cut", value) && is("same", value + 1) &&
         std::get<std::int64_t>(reader.scalars().at("step")) == static_cast<std::int64_t>(value);
}

std::int64_t snapshot_in_use() {
  return memory_statistics().bytes[static_cast<std::size_t>(MemoryCategory::snapshot)];
}

}  // namespace

TEST_CASE("a save in the background has the state of its start") {
  const Folder folder;
  on_ranks(3, [&](int) {
    CheckpointSaver saver;
    check(saver.wait() == std::nullopt, "nothing to wait for");
    const StateDict state = state_of(3, 1);
    saver.start(folder / "a", state, R"({"run": 1})");
    fill(state, 50);
    check(saver.wait() == folder / "a", "saved");
    check(saver.finished() == std::nullopt, "told once");
    fill(state, 60);
  });
  CHECK(holds(folder / "a", 1));
  CHECK(CheckpointReader(folder / "a").meta() == R"({"run":1})");
}

TEST_CASE("a save in the background has the bytes of one that is waited for") {
  const Folder folder;
  on_ranks(3, [&](int) {
    CheckpointSaver saver;
    saver.start(folder / "a", state_of(3, 4));
    saver.wait();
    save_checkpoint(folder / "b", state_of(3, 4));
  });
  for (const auto& entry : std::filesystem::directory_iterator(folder / "b")) {
    const std::string name = entry.path().filename().string();
    CHECK(read_file(folder / ("a/" + name)) == read_file(folder / ("b/" + name)));
  }
}

TEST_CASE("the memory of the copy is used again, and is as large as was announced") {
  const Folder folder;
  on_ranks(2, [&](int) {
    const std::int64_t before = snapshot_in_use();
    {
      const StateDict state = state_of(2, 1, 5000);
      CheckpointSaver saver;
      saver.start(folder / "a", state);
      const std::int64_t used = snapshot_in_use() - before;
      check(used == static_cast<std::int64_t>(snapshot_bytes(state)),
            "used == static_cast<std::int64_t>(snapshot_bytes(state))");
      saver.start(folder / "b", state_of(2, 2, 5000));
      check(snapshot_in_use() - before == used, "snapshot_in_use() - before == used");
      // Another state needs other memory; the old one goes away.
      saver.start(folder / "c", state_of(2, 3));
      check(snapshot_in_use() - before == static_cast<std::int64_t>(snapshot_bytes(state_of(2, 3))),
            "snapshot_in_use() - before == static_cast<std::int64_t>( snapshot_bytes(state_of(2, "
            "3)))");
      saver.wait();
    }
    check(snapshot_in_use() == before, "snapshot_in_use() == before");
  });
  CHECK(holds(folder / "a", 1));
  CHECK(holds(folder / "b", 2));
  CHECK(holds(folder / "c", 3));
}

TEST_CASE("ranks communicate while a save is running, and agree on whether one is") {
  const Folder folder;
  std::atomic<int> running{0};
  on_ranks(2, [&](int rank) {
    collective::World& world = collective::World::current();
    CheckpointSaver saver;
    const auto sum = [&](double mine) {
      double all = 0;
      world.everyone().all_reduce(&mine, &all, 1, DType::f64);
      return all;
    };
    saver.start(folder / "a", state_of(2, 1, 1 << 24));
    for (int i = 0; i < 100; ++i) {
      running += saver.saving() ? 1 : 0;
      check(sum(rank + 1) == 3, "the sum while a save is running");
      const double agreed = sum(saver.saving_anywhere() ? 1 : 0);
      check(agreed == 0 || agreed == 2, "the same answer on all ranks");
    }
    check(saver.wait() == folder / "a", "the save has ended");
    check(!saver.saving(), "nothing is running");
    check(sum(saver.saving_anywhere() ? 1 : 0) <= 2, "any answer, but the same one");
  });
  CHECK(running > 0);
  CHECK(holds(folder / "a", 1));
}

TEST_CASE("a second save waits for the first one") {
  const Folder folder;
  on_ranks(2, [&](int) {
    CheckpointSaver saver;
    for (int i = 1; i <= 4; ++i) {
      saver.start(folder / (std::to_string(i)), state_of(2, i));
    }
  });  // and the end of the saver for the last one
  for (int i = 1; i <= 4; ++i) {
    CHECK(holds(folder / (std::to_string(i)), i));
  }
}

TEST_CASE("a failure in the background is the same error on all ranks, once") {
  const Folder folder;
  on_ranks(2, [&](int) { save_checkpoint(folder / "good", state_of(2, 1)); });
  std::atomic<int> told{0};
  on_ranks(2, [&](int rank) {
    CheckpointSaver saver;
    StateDict state = state_of(2, 2);
    if (rank == 1) {
      fill(state, std::numeric_limits<double>::infinity());
    }
    saver.start(folder / "bad", state);
    const std::string error = run_error([&] { saver.wait(); });
    told += contains(error, "rank 1") &&
            contains(error, "tensor 'cut' holds values that are NaN or infinite");
    check(saver.wait() == std::nullopt, "saver.wait() == std::nullopt");
    // A state that cannot even be copied, on one rank.
    state = state_of(2, 2);
    if (rank == 0) {
      state.tensors["cut"] = empty({2}, DType::f32, meta);
    }
    told += contains(run_error([&] { saver.start(folder / "bad", state); }),
                     "tensor 'cut' has no memory");
    saver.start(folder / "next", state_of(2, 3));
    check(saver.wait() == folder / "next", "saver.wait() == folder / ('next')");
  });
  CHECK(told == 4);
  CHECK(folder.names() == std::vector<std::string>{"good", "next"});
  CHECK(holds(folder / "next", 3));
}

#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)  // they reserve terabytes
TEST_CASE("without memory for the copy a save holds its rank up, and is whole") {
  const Folder folder;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    collective::run_threads(1, [&](collective::World&) {
      const StateDict state = state_of(1, 1, 1 << 26);  // 256 MiB
      CheckpointSaver saver;
      saver.start(folder / "warm", state_of(1, 1));  // what else it allocates is there
      saver.wait();
      const StateDict in_hand = state_of(1, 2, 1 << 26);  // what is free now
      release_cached_memory();
      std::ifstream pages("/proc/self/statm");
      rlim_t used = 0;
      pages >> used;
      used *= static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
      const rlimit limit{used + (128U << 20), RLIM_INFINITY};
      ::setrlimit(RLIMIT_AS, &limit);
      saver.start(folder / "c", state);
      check(!saver.saving(), "the save has ended");
      fill(state, 7);
      check(saver.wait() == folder / "c", "the save has succeeded");
    });
    ::_exit(incomplete_outputs().empty() ? 0 : 3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(holds(folder / "c", 1));
}
#endif

TEST_CASE("a folder that is removed while it is written is an error that names it") {
  const Folder folder;
  std::atomic<int> told{0};
  on_ranks(2, [&](int rank) {
    CheckpointSaver saver;
    saver.start(folder / "deep/a", state_of(2, 1, 1 << 24));
    if (rank == 0) {
      while (!std::filesystem::exists(folder / "deep") ||
             std::filesystem::is_empty(folder / "deep")) {
      }
      std::filesystem::rename(folder / "deep", folder / "gone");
    }
    const std::string error = run_error([&] { saver.wait(); });
    told += contains(error, "/deep/a") && contains(error, "No such file or directory");
  });
  CHECK(told == 2);
}

TEST_CASE("when a rank is killed during a save in the background the last good one stays") {
  const Folder folder;
  const auto run = [&](double value, bool one_dies) {
    return collective::launch({.ranks = 2, .print_error = false}, [&](collective::World& world) {
      CheckpointSaver saver;
      saver.start(folder / "c", state_of(2, value, 1'000'000));
      if (one_dies && world.rank() == 1) {
        ::raise(SIGKILL);
      }
      saver.wait();
      return 0;
    });
  };
  REQUIRE(run(1, false) == 0);
  CHECK(holds(folder / "c", 1));
  CHECK(run(2, true) != 0);
  CHECK(holds(folder / "c", 1));
  REQUIRE(run(3, false) == 0);
  CHECK(holds(folder / "c", 3));
  CHECK(folder.names() == std::vector<std::string>{"c"});
}
