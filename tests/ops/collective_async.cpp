// Collectives that are issued now and completed by wait, and those of many tensors: as operators
// that modes see, against the collectives that are complete when they return.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "on_ranks.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

using namespace tessera;
using collective::World;
using tessera::testing::check;
using tessera::testing::error_of;
using tessera::testing::on_ranks;

namespace {

/// Element i of a tensor of this rank.
Tensor numbered(const Dims& shape, int rank = 0) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < shape.product(); ++i) {
    values.push_back(static_cast<float>((i * 7 + rank * 3) % 11));
  }
  return from_values(std::span<const float>(values), shape);
}

/// Rank `rank`'s part of dim `dim`: a strided view.
Tensor part(const Tensor& whole, int dim, int ranks, int rank) {
  const ShardRange range = chunk_of({0, whole.shape()[dim]}, ranks, rank);
  return ops::narrow(whole, dim, range.begin, range.length);
}

bool equal(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && to_doubles(a) == to_doubles(b);
}

/// What a mode below distribution sees.
class Seen final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    names += call.op.name + " ";
    return next(call);
  }
  void perform(Action& action, NextAction& next) override {
    if (action.kind == ActionKind::collective || action.kind == ActionKind::wait) {
      names += "(communicator) ";
    }
    next(action);
  }
  std::string names;
};

}  // namespace

TEST_CASE("an issued collective has its result after wait, and modes see both as operators") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    const ops::Ranks group = world.everyone();
    for (const Dims& shape : {Dims{8, 3}, Dims{6, 5}, Dims{5, 2, 7}, Dims{0, 4}, Dims{1, 4}}) {
      const Tensor x = numbered(shape, world.rank());
      const Tensor whole = numbered(shape);
      for (int dim = 0; dim < shape.size(); ++dim) {
        const Tensor mine = part(whole, dim, ranks, world.rank());
        const int other = dim == 0 ? 1 : 0;
        const Tensor both[][2] = {
            {ops::all_gather(mine, dim, shape[dim], group),
             ops::all_gather_async(mine, dim, shape[dim], group).wait()},
            {ops::reduce_scatter(x, dim, ReduceOp::sum, group),
             ops::reduce_scatter_async(x, dim, ReduceOp::sum, group).wait()},
            {ops::all_reduce(x, ReduceOp::max, group),
             ops::all_reduce_async(x, ReduceOp::max, group).wait()},
            {ops::all_to_all(mine, dim, shape[dim], other, group),
             ops::all_to_all_async(mine, dim, shape[dim], other, group).wait()},
            {ops::shift(x, 1 - dim, group), ops::shift_async(x, 1 - dim, group).wait()},
            {ops::mirror(x, 1 - dim, group), ops::mirror_async(x, 1 - dim, group).wait()}};
        for (const auto& [now, later] : both) {
          check(equal(now, later), to_string(shape) + " along " + std::to_string(dim));
        }
      }
    }
    Seen seen;
    {
      const ModeScope scope(ModeLevel::below_distribution, seen);
      const Tensor x = numbered({4, 2}, world.rank());
      ops::PendingTensor first = ops::all_reduce_async(x, ReduceOp::sum, group);
      ops::PendingTensor second = ops::all_gather_async(x, 0, 4 * ranks, group);
      second.wait();
      first.wait();
      check(first.done(), "complete");
      first.wait();  // nothing more
    }
    check(seen.names == "all_reduce_async all_gather_async wait wait ", seen.names);
  });
}

TEST_CASE("what is issued is complete before its memory goes away, and later calls are right") {
  on_ranks({2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    for (int i = 0; i < 20; ++i) {
      const Tensor x = numbered({64, 8}, world.rank());
      static_cast<void>(ops::all_gather_async(x, 0, 64 * ranks, world.everyone()));
      static_cast<void>(ops::reduce_scatter_async(x, 1, ReduceOp::sum, world.everyone()));
      check(equal(ops::all_reduce(full({3}, 1), ReduceOp::sum, world.everyone()), full({3}, ranks)),
            "the next call");
    }
  });
}

TEST_CASE("sources stay until the other ranks have read them, also where a rank drops the result") {
  constexpr std::int64_t own = 50000;
  std::atomic<bool> dropped = false;
  collective::run_threads(2, [&](World& world) {
    Tensor whole = full({2 * own}, -1);
    std::vector<Tensor> read;
    {
      const PeersReadScope scope;
      read.push_back(full({own}, world.rank() + 1));
    }
    ops::all_gather_into({&whole, 1}, read, world.everyone(), 0);
    if (world.rank() == 1) {
      whole = Tensor();
      read.clear();
      const PeersReadScope scope;
      for (int i = 0; i < 8; ++i) {
        read.push_back(full({own}, 7));  // its memory would be taken again
      }
      dropped = true;
    } else {
      while (!dropped) {
        std::this_thread::yield();
      }
      ops::wait(whole);
      check(ops::sum(ops::narrow(whole, 0, own, own)).item() == 2 * own, "what rank 1 has issued");
    }
  });
}

TEST_CASE("wait for what was not issued, or twice, is an error") {
  const auto world = World::single();
  const std::string expected =
      "wait: no collective was issued for x; pass the result of an operator that issues one, once";
  CHECK(error_of([] { ops::wait(full({2}, 1)); }) == expected);
  const Op& issue = find_op("all_reduce_async");
  const Tensor x = full({2}, 3);
  const Tensor pending = call_one(issue, {x}, parse_arguments(issue, "op=sum, group=ranks 0"));
  const std::uint64_t version = pending.storage().version();
  ops::wait(pending);
  CHECK(equal(pending, x));
  CHECK(pending.storage().version() == version);
  CHECK(error_of([&] { ops::wait(pending); }) == expected);
}

TEST_CASE("many tensors are gathered and reduced in one call, uneven and empty shards too") {
  on_ranks({1, 2, 3, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    const ops::Ranks group = world.everyone();
    const std::vector<Dims> shapes = {{8, 3}, {5, 2}, {1}, {7}};
    std::int64_t elements = 0;
    for (const Dims& shape : shapes) {
      elements += shape.product();
    }
    const Tensor memory = full({elements}, -1);
    std::vector<Tensor> wholes;
    std::vector<Tensor> shards;
    std::vector<Tensor> sources;
    std::vector<Tensor> sums;
    const Tensor reduced = full({elements}, -1);
    std::int64_t at = 0;
    for (const Dims& shape : shapes) {
      wholes.push_back(alias(memory, shape, contiguous_strides(shape), at));
      const Tensor mine = part(numbered(shape), 0, ranks, world.rank());
      shards.push_back(ops::shared_empty(mine.shape(), DType::f32, group));
      ops::copy_(shards.back(), mine);
      sources.push_back(numbered(shape, world.rank()));
      sums.push_back(alias(reduced, mine.shape(), contiguous_strides(mine.shape()), at));
      at += shape.product();
    }
    const std::uint64_t version = memory.storage().version();
    ops::all_gather_into(wholes, shards, group, 5);
    ops::wait(wholes[0]);
    check(memory.storage().version() == version, "saved tensors of the memory stay valid");
    ops::reduce_scatter_into(sums, sources, ReduceOp::sum, group, 5);
    ops::wait(sums[0]);
    ops::wait_readers(shards, group);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      check(equal(wholes[i], numbered(shapes[i])), "gathered " + to_string(shapes[i]));
      Tensor sum = zeros(shapes[i]);
      for (int rank = 0; rank < ranks; ++rank) {
        sum = ops::add(sum, numbered(shapes[i], rank));
      }
      check(equal(sums[i], part(sum, 0, ranks, world.rank())), "reduced " + to_string(shapes[i]));
      check(sums[i].storage().version() > 0, "a reduction is a write");
    }
    std::vector<Tensor> in_place;  // the last one where peers read it
    for (const Tensor& source : sources) {
      in_place.push_back(ops::clone(source));
    }
    in_place.push_back(numbered({100, 70}, world.rank()));
    {
      const PeersReadScope scope;
      in_place.push_back(numbered({100, 70}, world.rank()));
    }
    ops::all_reduce_coalesced_(in_place, ReduceOp::sum, group, 5);
    ops::wait(in_place[0]);
    for (const Tensor& x : in_place) {
      Tensor sum = zeros(x.shape());
      for (int rank = 0; rank < ranks; ++rank) {
        sum = ops::add(sum, numbered(x.shape(), rank));
      }
      check(equal(x, sum), "summed in place " + to_string(x.shape()));
      check(x.storage().version() > 0, "a reduction is a write");
    }
    const collective::MemberRange last = {.first = ranks - 1, .count = 1};
    const ops::GroupArgument of_last =
        ops::GroupArgument::of(world.everyone().global_ranks(), "", last);
    ops::reduce_scatter_into(sums, sources, ReduceOp::sum, of_last, 5);
    ops::wait(sums[0]);
    std::vector<Tensor> copies;
    for (const Tensor& source : sources) {
      copies.push_back(ops::clone(source));
    }
    ops::all_reduce_coalesced_(copies, ReduceOp::sum, of_last, 5);
    ops::wait(copies[0]);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const Tensor wanted = numbered(shapes[i], ranks - 1);
      check(equal(sums[i], part(wanted, 0, ranks, world.rank())), "a shard of the last term");
      check(equal(copies[i], wanted), "the last term");
    }
    const std::string refused =
        error_of([&] { ops::all_reduce(sources[0], ReduceOp::sum, of_last); });
    check(ranks == 1 || refused.find("not all of its ranks are terms") != std::string::npos,
          "a call that knows no terms");
    const Tensor flat = numbered({6}, world.rank());
    const Tensor expected = ops::all_reduce(flat, ReduceOp::sum, group);
    ops::all_reduce_(flat, ReduceOp::sum, group);
    check(equal(flat, expected), "all_reduce_ writes what all_reduce returns");
  });
}

TEST_CASE("shards that do not fit are refused, and ranks that exchange different tensors too") {
  const auto world = World::single();
  const ops::Ranks one = world->everyone();
  const Tensor memory = zeros({8});
  const auto gather = [&](const Tensor& whole, const Tensor& shard) {
    return error_of([&] { ops::all_gather_into({&whole, 1}, {&shard, 1}, one, 0); });
  };
  CHECK(gather(memory, zeros({7})) ==
        "all_gather_into: rank 0 of 1 has a shard f32[7] of a whole f32[8] (expected contiguous "
        "tensors of one type, the shard of [8])");
  CHECK(gather(memory, zeros({8}, DType::f64)).starts_with("all_gather_into: rank 0 of 1 has a"));
  const std::vector<Tensor> apart = {zeros({2}), zeros({2})};
  const std::vector<Tensor> shards = {zeros({2}), zeros({2})};
  CHECK(error_of([&] {
          ops::all_gather_into(apart, shards, one, 0);
        }).find("the wholes are in several memories") != std::string::npos);
  ops::reduce_scatter_into(apart, shards, ReduceOp::sum, one, 0);  // shards may be
  ops::wait(apart[0]);
  const std::vector<Tensor> mixed = {zeros({2}), zeros({2}, DType::f64)};
  CHECK(error_of([&] { ops::all_reduce_coalesced_(mixed, ReduceOp::sum, one, 0); }) ==
        "all_reduce_coalesced_: the tensors are not contiguous tensors of one type");
  std::string text;
  try {
    collective::run_threads(2, [&](World& ranks) {
      const Tensor whole = zeros({4});
      const Tensor shard = zeros({2});
      ops::all_gather_into({&whole, 1}, {&shard, 1}, ranks.everyone(), ranks.rank());
      ops::wait(whole);
    });
  } catch (const Error& error) {
    text = error.what();
  }
  CHECK(text.find("all_gather") != std::string::npos);
}

TEST_CASE("on the meta device collectives have shapes, and need no other rank and no world") {
  const ops::GroupArgument group = ops::GroupArgument::of(std::vector<int>{3, 0, 2, 1});
  CHECK(group.size() == 4);
  CHECK(group.rank() == 1);  // where this rank, 0, is
  CHECK(group.group == ops::GroupArgument::of(std::vector<int>{3, 0, 2, 1}).group);
  CHECK(group.group != ops::GroupArgument::of(std::vector<int>{3, 0, 2, 1}, "checkpoint").group);
  const Tensor x = empty({8, 6}, DType::f32, meta);
  CHECK(ops::all_gather(x, 0, 32, group).shape() == Dims{32, 6});
  CHECK(ops::reduce_scatter(x, 1, ReduceOp::sum, group).shape() == Dims{8, 2});
  CHECK(ops::all_to_all(x, 0, 32, 1, group).shape() == Dims{32, 2});
  CHECK(ops::broadcast(x, 2, group).shape() == x.shape());
  CHECK(ops::all_gather_async(x, 0, 32, group).wait().shape() == Dims{32, 6});
  ops::all_reduce_(x, ReduceOp::sum, group);
  const Tensor whole = empty({30, 6}, DType::f32, meta);
  ops::all_gather_into({&whole, 1}, {&x, 1}, group, 0);
  ops::wait(whole);
  ops::reduce_scatter_into({&x, 1}, {&whole, 1}, ReduceOp::sum, group, 0);
  ops::wait_readers({&x, 1}, group);
  CHECK(error_of([] {
          static_cast<void>(ops::GroupArgument::of(std::vector<int>{4, 5}).rank());
        }) == "group: rank 0 is not in it (ranks 4 5); only its ranks make the call");
}
