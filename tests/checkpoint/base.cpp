// Checkpoints that leave out tensors of another model, which they name.
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.collective;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.tensor;

#include "../support/errors.hpp"

using namespace tessera;
using namespace checkpoint_test;
using tessera::testing::check;
namespace fs = std::filesystem;

namespace {

/// A tensor of which every element has this value, cut over the ranks.
Tensor cut(int ranks, double value) {
  const SpecHandle spec =
      Spec::make(Layout::make(DeviceMesh::make({"axis"}, {ranks}), {Shard(0)}), {7, 3}, DType::f32);
  return make_distributed(full(local_shape(*spec), value), spec);
}

StateDict state_of(int ranks, double frozen, double trained) {
  StateDict state;
  state.tensors["frozen"] = cut(ranks, frozen);
  state.tensors["trained"] = cut(ranks, trained);
  state.scalars["step"] = std::int64_t{5};
  return state;
}

std::shared_ptr<const CheckpointBase> base() {
  return std::make_shared<const CheckpointBase>(
      CheckpointBase{.path = "somewhere/model",
                     .relative = "../model",
                     .hash = "abc",
                     .tensors = {{"frozen", {DType::f32, {7, 3}}}}});
}

double first_of(const Tensor& x) { return to_doubles(local_of(x)).front(); }

}  // namespace

TEST_CASE("a checkpoint leaves out the tensors of its base, and any mesh loads the rest") {
  const Folder folder;
  for (const bool in_background : {false, true}) {
    const std::string path = folder / (in_background ? "b" : "a");
    on_ranks(2, [&](int) {
      const StateDict state = state_of(2, 1, 2);
      if (!in_background) {
        save_checkpoint(path, state, "{}", {.base = base()});
        return;
      }
      CheckpointSaver saver;
      saver.start(path, state, "{}", {.base = base()});
      saver.wait();
    });
    const CheckpointReader reader(path);
    CHECK(reader.verify().empty());
    CHECK(reader.tensors().size() == 1);
    REQUIRE(reader.base());
    CHECK(reader.base()->path == "somewhere/model");
    CHECK(reader.base()->relative == "../model");
    CHECK(reader.base()->hash == "abc");
    CHECK(reader.base()->tensors == base()->tensors);
    on_ranks(3, [&](int) {
      StateDict state = state_of(3, 10, 20);
      load_state(reader, state, {.base = "abc"});
      check(first_of(state.tensors.at("frozen")) == 10, "it stays as it is");
      check(first_of(state.tensors.at("trained")) == 2, "it is loaded");
    });
  }
  // Written again as a checkpoint, it still names the base.
  write_checkpoint(CheckpointReader(folder / "a"), folder / "again");
  CHECK(CheckpointReader(folder / "again").base()->tensors == base()->tensors);
}

TEST_CASE("a checkpoint with a base is loaded only into a state of that base") {
  const Folder folder;
  on_ranks(1,
           [&](int) { save_checkpoint(folder / "c", state_of(1, 1, 2), "{}", {.base = base()}); });
  const CheckpointReader reader(folder / "c");
  StateDict state = state_of(1, 10, 20);
  std::string problem = input_error([&] { load_state(reader, state); });
  CHECK(contains(problem, "it leaves out 1 of its tensors, which are those of somewhere/model"));
  problem = input_error([&] { load_state(reader, state, {.base = "def"}); });
  CHECK(contains(problem, "somewhere/model"));
  CHECK(contains(problem, "expected the hash abc, got def"));
  state.tensors["frozen"] = full({7, 2}, 1, DType::f32);
  problem = input_error([&] { check_state(reader, state, {.base = "abc"}); });
  CHECK(contains(problem, "'frozen': shape (expected [7, 2], got [7, 3])"));
  CHECK(first_of(state.tensors.at("trained")) == 20);
  on_ranks(1, [&](int) {
    const std::string wrong =
        run_error([&] { save_checkpoint(folder / "d", state, "{}", {.base = base()}); });
    check(contains(wrong, "tensor 'frozen' is not the one of its base"), wrong);
  });
}

TEST_CASE("a base is looked for at its path, and then beside the checkpoint") {
  const Folder folder;
  CheckpointBase base{.path = folder / "gone", .relative = "../model", .hash = ""};
  fs::create_directories(folder / "run");
  CHECK(base.found_from(folder / "run") == folder / "gone");
  fs::create_directories(folder / "model");
  CHECK(base.found_from(folder / "run") == folder / "model");
  fs::create_directories(folder / "gone");
  CHECK(base.found_from(folder / "run") == folder / "gone");
}

TEST_CASE("stored values are compared with a state bit by bit") {
  const Folder folder;
  on_ranks(2, [&](int rank) {
    StateDict state = state_of(2, 1, 2);
    save_checkpoint(folder / "c", state);
    const CheckpointReader reader(folder / "c");
    check(has_stored_values(reader, state), "the same");
    state.tensors["unknown"] = full({1}, 1, DType::f32);
    check(has_stored_values(reader, state), "what is not stored is left out");
    if (rank == 1) {
      local_of(state.tensors.at("trained")).data<float>()[0] = 3;
    }
    check(has_stored_values(reader, state) == (rank == 0), "each rank sees its own part");
    state.tensors["trained"] = full({7, 3}, 2, DType::f64);
    check(!has_stored_values(reader, state), "another type");
  });
}
