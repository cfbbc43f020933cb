// Saves that fail or are cut off, and checkpoints that were damaged.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.collective;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

using namespace tessera;
using namespace checkpoint_test;

namespace {

/// A vector cut over the ranks, all of one value; 4 bytes an element.
StateDict state_of(int ranks, double value, std::int64_t elements = 64) {
  const SpecHandle spec = Spec::make(Layout::make(DeviceMesh::make({"shard"}, {ranks}), {Shard(0)}),
                                     {elements}, DType::f32);
  StateDict state;
  state.tensors["x"] = make_distributed(full(local_shape(*spec), value), spec);
  return state;
}

void save_value(int ranks, const std::string& path, double value, std::int64_t elements = 64) {
  on_ranks(ranks, [&](int) { save_checkpoint(path, state_of(ranks, value, elements)); });
}

/// The value of all elements; the test fails when they differ.
double loaded_value(const std::string& path) {
  const std::vector<double> values = to_doubles(CheckpointReader(path).read("x"));
  REQUIRE(std::equal(values.begin() + 1, values.end(), values.begin()));
  return values.front();
}

/// Files of this process cannot grow beyond `bytes` within the scope: what a full disk looks like
/// to a program.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
  }
  SmallFiles(const SmallFiles&) = delete;
  ~SmallFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE(
    "a process that dies while it writes leaves the last good checkpoint; the next save "
    "removes its rest") {
  const Folder folder;
  const std::string path = folder / "step-00000001";
  save_value(1, path, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, SIG_DFL);  // the kernel kills the process in the middle of the file
    save_value(1, path, 2, 100'000);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(folder.names().size() == 2);
  CHECK(contains(folder.names()[1], "step-00000001.tmp-"));
  CHECK(loaded_value(path) == 1);
  CHECK(latest_checkpoint(folder / "") == path);
  save_value(2, path, 3);
  CHECK(folder.names() == std::vector<std::string>{"step-00000001"});
  CHECK(loaded_value(path) == 3);
}

TEST_CASE("a full disk on one rank is one clear error on every rank, and nothing is left of it") {
  const Folder folder;
  const std::string path = folder / "c";
  save_value(3, path, 1);
  // Only rank 1 is on the mesh of "large"; the others do not know of it.
  const auto state_on = [](int rank) {
    StateDict state = state_of(3, 2);
    if (rank == 1) {
      const auto layout = Layout::make(DeviceMesh::make({"a"}, {1}, {1}), {Shard(0)});
      state.tensors["large"] =
          make_distributed(full({5000}, 2), Spec::make(layout, {5000}, DType::f32));
    }
    return state;
  };
  std::atomic<int> told{0};
  on_ranks(3, [&](int rank) {
    std::optional<SmallFiles> limit;
    if (rank == 0) {
      limit.emplace(4096);
    }
    const std::string error = run_error([&] { save_checkpoint(path, state_on(rank)); });
    if (contains(error,
                 "rank-1.safetensors: writing failed (File too large; the limit on the size of a "
                 "file")) {
      ++told;
    }
  });
  CHECK(told == 3);
  CHECK(folder.names() == std::vector<std::string>{"c"});
  CHECK(loaded_value(path) == 1);
  on_ranks(3, [&](int rank) { save_checkpoint(path, state_on(rank)); });
  CHECK(loaded_value(path) == 2);
  CHECK(CheckpointReader(path).info("large").shape == Dims{5000});
}

TEST_CASE("ranks that are processes save together; when one is killed the last good one stays") {
  const Folder folder;
  const std::string path = folder / "c";
  const auto save_as_processes = [&](double value, bool one_dies) {
    return collective::launch({.ranks = 2, .print_error = false}, [&](collective::World& world) {
      if (one_dies && world.rank() == 1) {
        ::raise(SIGKILL);
      }
      save_checkpoint(path, state_of(2, value));
      return 0;
    });
  };
  REQUIRE(save_as_processes(1, false) == 0);
  CHECK(loaded_value(path) == 1);
  CHECK(save_as_processes(2, true) != 0);
  CHECK(loaded_value(path) == 1);
  REQUIRE(save_as_processes(3, false) == 0);
  CHECK(loaded_value(path) == 3);
  CHECK(folder.names() == std::vector<std::string>{"c"});
}

TEST_CASE("what the ranks save must fit together") {
  const Folder folder;
  const auto error_of = [&](int ranks, const std::function<StateDict(int)>& state) {
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    on_ranks(ranks, [&](int rank) {
      try {
        save_checkpoint(folder / "c", state(rank));
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    CHECK(folder.names().empty());
    for (const std::string& error : errors) {
      CHECK(error == errors[0]);
    }
    return errors[0];
  };
  CHECK(contains(error_of(2, [](int rank) { return state_of(2, 1, rank == 0 ? 8 : 10); }),
                 "disagree about tensor 'x'"));
  CHECK(contains(error_of(2, [](int rank) { return rank == 0 ? state_of(2, 1) : StateDict{}; }),
                 "leave gaps"));
  const auto partial = Layout::make(DeviceMesh::make({"a"}, {2}), {Partial()});
  CHECK(contains(error_of(2,
                          [&](int) {
                            StateDict state;
                            state.tensors["p"] =
                                make_distributed(zeros({2}), Spec::make(partial, {2}, DType::f32));
                            return state;
                          }),
                 "'p' is [Partial(sum)]"));
  CHECK(contains(error_of(1,
                          [](int) {
                            StateDict state;
                            state.tensors["m"] = empty({2}, DType::f32, meta);
                            return state;
                          }),
                 "'m' has no memory"));
  CHECK(contains(error_of(1,
                          [](int) {
                            StateDict state;
                            state.scalars["s"] = std::string("\xff");
                            return state;
                          }),
                 "UTF-8"));
}

TEST_CASE("only what saves leave behind is removed, and never a save that is going on") {
  const Folder folder;
  folder.write("a.tmp-1/rank-0.safetensors", "half");
  folder.write("a.tmp-2/rank-0.safetensors", "half");
  folder.write("notes.tmp-x/thoughts.txt", "mine");
  folder.write("mixed.tmp-3/thoughts.txt", "mine");
  folder.write("mixed.tmp-3/rank-0.safetensors", "mine too");
  const int going_on = ::open((folder / "a.tmp-2").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(going_on, LOCK_EX) == 0);
  save_value(1, folder / "c", 1);
  ::close(going_on);
  CHECK(folder.names() == std::vector<std::string>{"a.tmp-2", "c", "mixed.tmp-3", "notes.tmp-x"});
  CHECK(std::filesystem::exists(folder / "mixed.tmp-3/rank-0.safetensors"));
}

TEST_CASE("a save into a folder that was moved or replaced writes nothing there") {
  const Folder folder;
  std::filesystem::create_directory(folder / "run");
  const auto held = std::make_shared<const HeldFolder>(folder / "run");
  const auto save = [&](int step) {
    on_ranks(2, [&](int) {
      StateDict state;
      state.scalars["s"] = std::int64_t{1};
      save_checkpoint(checkpoint_folder(folder / "run", step), state, "{}", {.within = held});
    });
  };
  save(1);
  std::filesystem::rename(folder / "run", folder / "moved");
  CHECK(contains(run_error([&] { save(2); }), "was removed, moved or replaced during the run"));
  CHECK(folder.names() == std::vector<std::string>{"moved"});
  std::filesystem::create_directory(folder / "run");
  CHECK(contains(run_error([&] { save(2); }), "was removed, moved or replaced during the run"));
  CHECK(std::filesystem::is_empty(folder / "run"));
  CHECK(checkpoints_in(folder / "moved").size() == 1);
}

TEST_CASE("a save from a thread that acts as another rank says what to do") {
  const Folder folder;
  set_current_rank(3);
  const std::string text = run_error([&] { save_checkpoint(folder / "c", {}, "{}"); });
  set_current_rank(0);
  CHECK(contains(text, "acts as the wrong rank (expected 0 as in its world, got 3); save from"));
  CHECK(contains(text, "call set_current_rank(0) in this thread"));
  CHECK(folder.names().empty());
}

TEST_CASE("a checkpoint takes the place of an older one, never of something else") {
  const Folder folder;
  save_value(2, folder / "c", 1);
  save_value(1, folder / "c/", 2);
  CHECK(loaded_value(folder / "c") == 2);
  CHECK_FALSE(std::filesystem::exists(folder / "c/rank-1.safetensors"));
  folder.write("mine/thoughts.txt", "");
  CHECK(contains(input_error([&] { save_value(2, folder / "mine", 1); }), "not a checkpoint"));
  CHECK(folder.names() == std::vector<std::string>{"c", "mine"});
  std::filesystem::create_directory(folder / "fresh");
  save_value(1, folder / "fresh", 5);
  CHECK(loaded_value(folder / "fresh") == 5);
  on_ranks(1, [&](int) {
    CHECK(contains(input_error([&] { save_checkpoint(folder / "d", {}, "[1"); }), "meta data"));
  });
}
