// Collectives of local tensors on ranks that are threads, against tensors that are cut directly.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "on_ranks.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;

using namespace tessera;
using collective::World;
using tessera::testing::check;
using tessera::testing::on_ranks;

namespace {

/// Element i of a tensor of this rank; the ranks' tensors differ where `rank` matters.
Tensor numbered(const Dims& shape, DType dtype, int rank = 0) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.product(); ++i) {
    values.push_back(static_cast<double>((i * 7 + rank * 3) % 11));
  }
  const Tensor x = empty(shape, dtype);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double value = values[static_cast<std::size_t>(i)];
    switch (dtype) {
      case DType::f32:
        x.data<float>()[i] = static_cast<float>(value);
        break;
      case DType::f64:
        x.data<double>()[i] = value;
        break;
      case DType::i64:
        x.data<std::int64_t>()[i] = static_cast<std::int64_t>(value);
        break;
      default:
        x.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(value);
    }
  }
  return x;
}

/// The part of `whole` along `dim` that `rank` of `ranks` holds: a strided view.
Tensor part(const Tensor& whole, int dim, int ranks, int rank) {
  const ShardRange range = chunk_of({0, whole.shape()[dim]}, ranks, rank);
  Dims shape = whole.shape();
  shape[dim] = range.length;
  return alias(whole, shape, whole.strides(), whole.offset() + range.begin * whole.strides()[dim]);
}

bool equal(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && to_doubles(a) == to_doubles(b);
}

/// Even, uneven, empty and inner shards; an outer dim of extent 1; nothing at all.
const std::vector<Dims>& some_shapes() {
  static const std::vector<Dims> shapes{{8, 3}, {6, 5}, {5, 2, 7}, {1, 4}, {2, 9, 3}, {0, 4}, {7}};
  return shapes;
}

}  // namespace

TEST_CASE("all_gather puts shards of any dim together, uneven and empty ones too") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    for (const Dims& shape : some_shapes()) {
      for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::u8}) {
        const Tensor whole = numbered(shape, dtype);
        for (int dim = 0; dim < shape.size(); ++dim) {
          const Tensor mine = part(whole, dim, ranks, world.rank());
          const Tensor got = ops::all_gather(mine, dim, shape[dim], world.everyone());
          check(equal(got, whole), "all_gather of " + to_string(shape));
        }
      }
    }
  });
}

TEST_CASE("reduce_scatter and all_reduce give what adding the ranks' tensors gives") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    for (const Dims& shape : some_shapes()) {
      const Tensor sum = zeros(shape, DType::f32);
      const Tensor largest = zeros(shape, DType::f32);
      for (int rank = 0; rank < ranks; ++rank) {
        const Tensor x = numbered(shape, DType::f32, rank);
        for (std::int64_t i = 0; i < x.numel(); ++i) {
          sum.data<float>()[i] += x.data<float>()[i];
          largest.data<float>()[i] = std::fmax(largest.data<float>()[i], x.data<float>()[i]);
        }
      }
      const Tensor x = numbered(shape, DType::f32, world.rank());
      check(equal(ops::all_reduce(x, ReduceOp::sum, world.everyone()), sum), "all_reduce");
      check(equal(ops::all_reduce(x, ReduceOp::max, world.everyone()), largest), "all_reduce max");
      for (int dim = 0; dim < shape.size(); ++dim) {
        const Tensor got = ops::reduce_scatter(x, dim, ReduceOp::sum, world.everyone());
        check(equal(got, part(sum, dim, ranks, world.rank())),
              "reduce_scatter of " + to_string(shape));
      }
    }
  });
}

TEST_CASE("all_to_all turns shards of one dim into shards of another") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    for (const Dims& shape : some_shapes()) {
      const Tensor whole = numbered(shape, DType::f64);
      for (int from = 0; from < shape.size(); ++from) {
        for (int to = 0; to < shape.size(); ++to) {
          if (from != to) {
            const Tensor got = ops::all_to_all(part(whole, from, ranks, world.rank()), from,
                                               shape[from], to, world.everyone());
            check(equal(got, part(whole, to, ranks, world.rank())),
                  "all_to_all of " + to_string(shape));
          }
        }
      }
    }
  });
}

TEST_CASE("broadcast gives every rank the root's tensor, a strided one too") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    for (int root = 0; root < ranks; ++root) {
      const Tensor x = numbered({4, 6}, DType::f32, world.rank());
      const Tensor cut = part(x, 1, 2, 1);
      const Tensor wanted = part(numbered({4, 6}, DType::f32, root), 1, 2, 1);
      check(equal(ops::broadcast(cut, root, world.everyone()), wanted), "broadcast");
    }
  });
}

TEST_CASE("shift gives every rank the tensor of the rank before it, and its gradient goes back") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    const int rank = world.rank();
    const auto at = [&](std::int64_t places) {
      return static_cast<int>(((rank + places) % ranks + ranks) % ranks);
    };
    for (const std::int64_t by : {-5, -1, 0, 1, 2, 7}) {
      const std::string what = "shift by " + std::to_string(by);
      for (const DType dtype : {DType::f32, DType::u8}) {
        const Tensor x = part(numbered({4, 6}, dtype, rank), 1, 2, 1);
        const Tensor wanted = part(numbered({4, 6}, dtype, at(-by)), 1, 2, 1);
        check(equal(ops::shift(x, by, world.everyone()), wanted), what);
      }
      // y is multiplied by w, so x has the w of the rank that received it.
      Tensor x = numbered({3, 2}, DType::f64, rank);
      Tensor w = numbered({3, 2}, DType::f64, rank + 1);
      x.set_requires_grad();
      w.set_requires_grad();
      const Tensor loss = ops::sum(ops::mul(ops::shift(x, by, world.everyone()), w));
      const std::vector<Tensor> first = gradients(std::vector{loss}, std::vector{Tensor()},
                                                  std::vector{x}, {.create_graph = true});
      check(equal(detached(first[0]), numbered({3, 2}, DType::f64, at(by) + 1)),
            what + ": gradient");
      // The gradient of the sum of its squares: 2 w, on the rank whose w it was.
      backward(ops::sum(ops::square(first[0])));
      check(equal(w.grad(), ops::mul_scalar(numbered({3, 2}, DType::f64, rank + 1), 2)),
            what + ": second gradient");
    }
    check(ops::shift(numbered({0, 4}, DType::f32), 1, world.everyone()).shape() == Dims{0, 4},
          "no elements");
  });
}

TEST_CASE("mirror gives every rank the tensor of its counterpart, and its gradient goes back") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    const int rank = world.rank();
    for (const std::int64_t by : {-7, -1, 0, 1, 2, 9}) {
      int other = 0;  // the one whose place and this rank's are n - 1 + by around the ring
      while ((other + rank - (ranks - 1) - by) % ranks != 0) {
        ++other;
      }
      const std::string what = "mirror by " + std::to_string(by);
      for (const DType dtype : {DType::f32, DType::u8}) {
        const Tensor x = part(numbered({4, 6}, dtype, rank), 1, 2, 1);
        const Tensor wanted = part(numbered({4, 6}, dtype, other), 1, 2, 1);
        check(equal(ops::mirror(x, by, world.everyone()), wanted), what);
      }
      Tensor x = numbered({3, 2}, DType::f64, rank);
      x.set_requires_grad();
      const Tensor w = numbered({3, 2}, DType::f64, rank + 1);
      backward(ops::sum(ops::mul(ops::mirror(x, by, world.everyone()), w)));
      check(equal(x.grad(), numbered({3, 2}, DType::f64, other + 1)), what + ": gradient");
    }
    check(ops::mirror(numbered({0, 4}, DType::f32), 0, world.everyone()).shape() == Dims{0, 4},
          "no elements");
  });
  const auto group = ops::GroupArgument::of(std::vector{0, 1, 2});
  CHECK(ops::mirror(empty({5, 3}, DType::f32, meta), 0, group).shape() == Dims{5, 3});
}

TEST_CASE("messages of one tag arrive in order, and those of others pass them") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    if (ranks == 1) {
      return;
    }
    const int rank = world.rank();
    const int next = (rank + 1) % ranks;
    const int before = (rank + ranks - 1) % ranks;
    for (const int part : {1, 2}) {
      ops::send(numbered({2, 3}, DType::f32, 10 * rank + part), next, 0, world.everyone());
    }
    ops::send(numbered({4}, DType::f64, rank), next, 1, world.everyone());
    const Tensor other = empty({4}, DType::f64);
    ops::receive_(other, before, 1, world.everyone());
    check(equal(other, numbered({4}, DType::f64, before)), "of another tag");
    for (const int part : {1, 2}) {
      const Tensor x = empty({2, 3}, DType::f32);
      ops::receive_(x, before, 0, world.everyone());
      check(equal(x, numbered({2, 3}, DType::f32, 10 * before + part)), "in order");
    }
  });
}

TEST_CASE("shift goes around each group of a mesh axis, and needs no other rank on meta") {
  collective::run_threads(6, [](World& world) {
    const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 3});
    const Tensor x = numbered({2, 2}, DType::f32, world.rank());
    const auto group = ops::GroupArgument::of(mesh.group(mesh.axis_index("b"), world.rank()));
    const int row = world.rank() / 3;
    const int before = 3 * row + (world.rank() % 3 + 2) % 3;
    check(equal(ops::shift(x, 1, group), numbered({2, 2}, DType::f32, before)), "along b");
  });
  const auto group = ops::GroupArgument::of(std::vector{0, 1, 2});
  CHECK(ops::shift(empty({5, 3}, DType::f32, meta), 1, group).shape() == Dims{5, 3});
}

TEST_CASE("a shard of the wrong size is an error that says which one was expected") {
  const auto world = World::single();
  std::string text;
  try {
    ops::all_gather(zeros({3, 2}), 0, 4, world->everyone());
  } catch (const Error& error) {
    text = error.what();
  }
  CHECK(text == "all_gather: rank 0 of 1 has a shard of [3, 2] in dim 0 (expected 4 of 4)");
}

TEST_CASE("dims, extents and roots that do not exist are refused by name") {
  on_ranks({1, 2, 4}, [](int) {
    World& world = World::current();
    const int ranks = world.size();
    const Tensor x = numbered({ranks, 2 * ranks}, DType::f32, world.rank());
    std::string everyone = "ranks";
    for (int rank = 0; rank < ranks; ++rank) {
      everyone += " " + std::to_string(rank);
    }
    const auto error_with = [&](const char* name, const std::vector<std::int64_t>& integers) {
      const Op& op = find_op(name);
      std::vector<ArgumentValue> values;
      std::size_t next = 0;
      for (const ArgumentField& field : op.arguments->fields) {
        if (field.type == "int") {
          values.emplace_back(integers[next++]);
        } else {
          values.emplace_back(std::string(field.type == "group" ? everyone : "sum"));
        }
      }
      try {
        call(op, {x}, op.arguments->from_values(values));
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    constexpr std::int64_t two_to_32 = std::int64_t{1} << 32;
    constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    for (const std::int64_t wrong :
         {least, std::int64_t{-1}, two_to_32 / 2, two_to_32, two_to_32 + 1, most}) {
      const auto refused = [&](const char* op, const std::vector<std::int64_t>& integers) {
        const std::string error = error_with(op, integers);
        check(error.starts_with(std::string(op) + ":"), op + std::string(": ") + error);
      };
      refused("all_gather", {wrong, ranks});
      refused("reduce_scatter", {wrong});
      refused("broadcast", {wrong});
      refused("all_to_all", {wrong, ranks, 1});
      refused("all_to_all", {0, ranks * ranks, wrong});
      if (wrong < 0 || ranks > 1) {
        refused("all_gather", {0, wrong});
        refused("all_to_all", {0, wrong, 1});
      }
    }
  });
}
