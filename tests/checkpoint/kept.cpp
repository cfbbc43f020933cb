// States that are kept in memory: what they hold, which of them is whole, and that they outlive
// processes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

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

namespace {

constexpr int ranks = 3;

Tensor on_mesh(const Tensor& whole, Placement placement) {
  const Layout layout = Layout::make(DeviceMesh::make({"axis"}, {ranks}), {placement});
  const SpecHandle spec = Spec::make(layout, whole.shape(), whole.dtype());
  const LocalPart part = local_part(whole.shape(), layout, current_rank());
  Tensor local = whole;
  for (int dim = 0; dim < whole.dims(); ++dim) {
    local = ops::narrow(local, dim, part.offset[dim], part.shape[dim]);
  }
  return make_distributed(ops::contiguous(local), spec);
}

/// 7 x 5: rows begin with `value`; uneven over three ranks.
Tensor numbers(double value) {
  std::vector<float> values(35);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(value + static_cast<double>(i));
  }
  return from_values(std::span<const float>(values), {7, 5});
}

/// Rows cut over the ranks, columns cut, what all hold, what only one stage's rank has, a scalar.
StateDict state_of(double value) {
  StateDict state;
  state.tensors["rows"] = on_mesh(numbers(value), Shard(0));
  state.tensors["columns"] = on_mesh(numbers(value + 100), Shard(1));
  state.tensors["same"] = on_mesh(numbers(value + 200), Replicate());
  state.scalars["step"] = static_cast<std::int64_t>(value);
  return state;
}

bool equal(const Tensor& a, const Tensor& b) { return to_doubles(a) == to_doubles(b); }

bool holds(const MemoryStateStore& kept, double value) {
  const std::unique_ptr<TensorSource> source = kept.open();
  return kept.newest() == static_cast<std::int64_t>(value) && source->tensors().size() == 3 &&
         equal(source->read("rows"), numbers(value)) &&
         equal(source->read("columns"), numbers(value + 100)) &&
         equal(source->read("same"), numbers(value + 200)) &&
         std::get<std::int64_t>(source->scalars().at("step")) == static_cast<std::int64_t>(value);
}

}  // namespace

TEST_CASE("the newest state that all ranks have kept can be read, whole and in boxes") {
  MemoryStateStore kept(ranks);
  CHECK_FALSE(kept.newest());
  CHECK(contains(run_error([&] { kept.open(); }), "no state is in memory"));
  on_ranks(ranks, [&](int) {
    for (const double step : {1, 2, 3}) {
      kept.keep(static_cast<std::int64_t>(step), state_of(step));
    }
  });
  REQUIRE(holds(kept, 3));
  const std::unique_ptr<TensorSource> source = kept.open();
  const Tensor box = full({3, 2}, 0);
  source->read("rows", {{2, 1}, {3, 2}}, box);
  CHECK(to_doubles(box) == std::vector<double>{14, 15, 19, 20, 24, 25});
  CHECK(source->bytes_read() == 24);
}

TEST_CASE("the memory of two generations is used again and again") {
  MemoryStateStore kept(ranks);
  on_ranks(ranks, [&](int) {
    kept.keep(1, state_of(1));
    kept.keep(2, state_of(2));
  });
  const std::uint64_t bytes = kept.bytes();
  CHECK(bytes > 2 * 3 * 35 * 4);
  on_ranks(ranks, [&](int) {
    for (std::int64_t step = 3; step < 20; ++step) {
      kept.keep(step, state_of(static_cast<double>(step)));
    }
  });
  CHECK(kept.bytes() == bytes);
  CHECK(holds(kept, 19));
}

TEST_CASE("tensors that come later, and of single ranks, are kept too") {
  MemoryStateStore kept(ranks);
  on_ranks(ranks, [&](int rank) {
    StateDict state = state_of(1);
    kept.keep(1, state);
    if (rank == 2) {  // of another stage: only its ranks have it
      state.tensors["stage"] = make_distributed(
          numbers(50),
          Spec::make(Layout::replicated(DeviceMesh::make({"one"}, {1}, {2})), {7, 5}, DType::f32));
      state.scalars["of stage"] = std::int64_t{9};
    }
    kept.keep(2, state);
  });
  CHECK(kept.newest() == 2);
  const std::unique_ptr<TensorSource> source = kept.open();
  CHECK(equal(source->read("stage"), numbers(50)));
  CHECK(std::get<std::int64_t>(source->scalars().at("of stage")) == 9);
  CHECK(equal(source->read("rows"), numbers(1)));
}

TEST_CASE("a state that one rank has not kept is not whole, and the one before stays") {
  MemoryStateStore kept(ranks);
  struct NoCopies final : Mode {
    Tensors call(const Call&, NextCall&) override { fail("planted"); }
  };
  on_ranks(ranks, [&](int rank) {
    kept.keep(4, state_of(4));
    const StateDict next = state_of(5);
    if (rank == 1) {
      NoCopies none;
      const ModeScope scope(ModeLevel::below_distribution, none);
      check(contains(run_error([&] { kept.keep(5, next); }), "planted"), "it cannot be kept");
    } else {
      kept.keep(5, next);
    }
  });
  CHECK(holds(kept, 4));
  CHECK(kept.whole() == std::vector<std::int64_t>{4});
  kept.drop_after(4);
  CHECK(holds(kept, 4));
  on_ranks(ranks, [&](int) { kept.keep(5, state_of(5)); });
  CHECK(holds(kept, 5));
}

TEST_CASE("a machine keeps all that its ranks hold, and nothing else") {
  MemoryStateStore first(ranks, 0, 2);
  MemoryStateStore second(ranks, 2, 1);
  on_ranks(ranks, [&](int rank) {
    for (const std::int64_t step : {1, 2}) {
      (rank < 2 ? first : second).keep(step, state_of(static_cast<double>(step)));
    }
  });
  CHECK(first.whole() == std::vector<std::int64_t>{1, 2});
  CHECK(second.whole() == std::vector<std::int64_t>{1, 2});
  second.drop_after(1);
  CHECK(second.newest() == 1);
  const std::unique_ptr<TensorSource> of_first = first.open();
  const std::unique_ptr<TensorSource> of_second = second.open();
  CHECK(equal(of_first->read("same"), numbers(202)));
  CHECK(equal(of_second->read("same"), numbers(201)));
  const Tensor rows = full({6, 5}, 0);
  of_first->read("rows", {{0, 0}, {6, 5}}, rows);
  CHECK(equal(rows, ops::narrow(numbers(2), 0, 0, 6)));
  const Tensor last = full({1, 5}, 0);
  of_second->read("rows", {{6, 0}, {1, 5}}, last);
  CHECK(equal(last, ops::narrow(numbers(1), 0, 6, 1)));
  CHECK(contains(run_error([&] { of_second->read("rows"); }), "the memory of another machine"));
}

/// As launchers do: what `from` has of this step, into `to`.
void copy(MemoryStateStore& from, MemoryStateStore& to, std::int64_t step) {
  const std::optional<collective::StateGeneration> state = from.generation(step);
  REQUIRE(state);
  const std::vector<std::span<std::byte>> blocks = to.begin_copy(state->head);
  REQUIRE(blocks.size() == state->blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    REQUIRE(blocks[i].size() == state->blocks[i].size());
    std::ranges::copy(state->blocks[i], blocks[i].begin());
  }
  to.end_copy(step);
}

TEST_CASE("a copy of a machine's states is what that machine has") {
  MemoryStateStore first(ranks, 0, 2);
  MemoryStateStore second(ranks, 2, 1);
  MemoryStateStore of_first(ranks, 0, 2);
  const auto keep = [&](std::int64_t step) {
    on_ranks(ranks, [&](int rank) {
      (rank < 2 ? first : second).keep(step, state_of(static_cast<double>(step)));
    });
  };
  for (const std::int64_t step : {1, 2, 3}) {
    keep(step);
    copy(first, of_first, step);
  }
  CHECK(of_first.whole() == std::vector<std::int64_t>{3, 2});
  const Tensor rows = full({6, 5}, 0);
  of_first.open()->read("rows", {{0, 0}, {6, 5}}, rows);
  CHECK(equal(rows, ops::narrow(numbers(3), 0, 0, 6)));
  CHECK(equal(of_first.open()->read("same"), numbers(203)));
  // One that has not come whole is none, and the one before stays.
  keep(4);
  of_first.begin_copy(first.generation(4)->head);
  CHECK(of_first.whole() == std::vector<std::int64_t>{3});
  CHECK_FALSE(of_first.generation(4));
  copy(first, of_first, 4);
  CHECK(of_first.newest() == 4);
  of_first.drop_after(3);
  CHECK(of_first.whole() == std::vector<std::int64_t>{3});
  // And back, into the memory of a machine that has nothing.
  MemoryStateStore again(ranks, 0, 2);
  copy(of_first, again, 3);
  const Tensor back = full({6, 5}, 0);
  again.open()->read("rows", {{0, 0}, {6, 5}}, back);
  CHECK(equal(back, rows));
  CHECK(contains(run_error([&] { second.begin_copy(first.generation(4)->head); }),
                 "a copy of a state is one of other ranks"));
}

TEST_CASE("the older generation stays until the newer one is copied") {
  MemoryStateStore kept(ranks);
  kept.expect_copies();
  CHECK(kept.wait_for_newer(-1, 0.01) == -1);
  std::thread copier([&] {
    for (std::int64_t step = 1; step <= 5; ++step) {
      std::int64_t newest = -1;
      while (newest < 0) {
        newest = kept.wait_for_newer(step - 1, 0.05);
      }
      check(newest == step, "no generation is passed over");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const std::vector<std::int64_t> whole = kept.whole();
      check(step == 1 || std::ranges::find(whole, step - 1) != whole.end(),
            "the one before is there until this one is copied");
      kept.set_copied(step);
    }
  });
  on_ranks(ranks, [&](int) {
    for (std::int64_t step = 1; step <= 5; ++step) {
      kept.keep(step, state_of(static_cast<double>(step)));
    }
  });
  copier.join();
  CHECK(holds(kept, 5));
}

TEST_CASE("a state outlives the processes that kept it, wherever one of them was killed") {
  MemoryStateStore kept(ranks);
  kept.set_told(3);
  const auto ranks_until = [&](std::int64_t last) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      collective::launch({.ranks = ranks, .print_error = false, .grace_seconds = 0.2},
                         [&](collective::World& world) {
                           for (std::int64_t step = 1; step <= last; ++step) {
                             kept.keep(step, state_of(static_cast<double>(step)));
                           }
                           kept.set_told(last);
                           world.everyone().barrier();  // all have kept the last one
                           if (world.rank() == 1) {
                             kill(getpid(), SIGKILL);
                           }
                           world.everyone().barrier();
                           return 0;
                         });
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
  };
  ranks_until(6);
  CHECK(holds(kept, 6));
  CHECK(kept.told() == 6);
  kept.drop_after(6);
  CHECK(kept.whole() == std::vector<std::int64_t>{5, 6});
  kept.drop_after(5);
  CHECK(kept.whole() == std::vector<std::int64_t>{5});
  ranks_until(7);
  CHECK(holds(kept, 7));
}

TEST_CASE("copies that differ are found, with the rank that differs") {
  on_ranks(ranks, [&](int rank) {
    StateDict state = state_of(1);
    check_copies(state);
    ops::mul_scalar_(state.tensors.at("rows").local(), rank + 2);  // cut: each is different anyway
    check_copies(state);
    ops::mul_scalar_(state.tensors.at("same").local(), rank == 1 ? 1.0009765625 : 1);
    const std::string error = run_error([&] { check_copies(state); });
    check(contains(error,
                   "rank 1 holds other bits than ranks 0 and 2 of 'same', which must be alike"),
          "the odd rank is named: " + error);
    ops::mul_scalar_(state.tensors.at("same").local(), rank == 2 ? 2 : 1);
    const std::string unclear = run_error([&] { check_copies(state); });
    check(contains(unclear, "hold different bits of 'same'"), "no majority: " + unclear);
  });
}
