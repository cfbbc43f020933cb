#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;

using namespace tessera;
using Catch::Contains;

using tessera::testing::error_of;
namespace {

using Indices = std::vector<std::int64_t>;

/// What torch.chunk gives rank `index`: consecutive pieces of ceil(n / k) until nothing is left.
Indices torch_chunk(const Indices& whole, std::int64_t shards, std::int64_t index) {
  const auto n = static_cast<std::int64_t>(whole.size());
  const std::int64_t piece = n / shards + (n % shards != 0 ? 1 : 0);
  Indices own;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i / piece == index) {
      own.push_back(whole[static_cast<std::size_t>(i)]);
    }
  }
  return own;
}

/// The indices of each dim that a rank holds, by nested chunks over `order`.
std::vector<Indices> nested_chunks(const Dims& shape, const DeviceMesh& mesh,
                                   std::span<const Placement> placements,
                                   std::span<const int> order, const Dims& coordinates) {
  std::vector<Indices> held;
  for (const std::int64_t length : shape) {
    held.emplace_back(static_cast<std::size_t>(length));
    std::iota(held.back().begin(), held.back().end(), 0);
  }
  for (const int axis : order) {
    const Placement placement = placements[static_cast<std::size_t>(axis)];
    if (placement.is_shard()) {
      Indices& dim = held[static_cast<std::size_t>(placement.dim())];
      dim = torch_chunk(dim, mesh.axis_size(axis), coordinates[axis]);
    }
  }
  return held;
}

Indices run_indices(const Dims& shape, const Layout& layout, const Dims& coordinates) {
  Indices all;
  std::int64_t end = -1;
  for_each_run(shape, layout, coordinates, [&](std::int64_t first, std::int64_t length) {
    CHECK(length > 0);
    CHECK(first > end);  // ascending, and never two runs that could be one
    for (std::int64_t i = 0; i < length; ++i) {
      all.push_back(first + i);
    }
    end = first + length;
  });
  return all;
}

/// All placements of `count` axes out of `kinds`.
std::vector<std::vector<Placement>> all_placements(int count, std::span<const Placement> kinds) {
  std::vector<std::vector<Placement>> all = {{}};
  for (int i = 0; i < count; ++i) {
    std::vector<std::vector<Placement>> longer;
    for (const auto& list : all) {
      for (const Placement kind : kinds) {
        longer.push_back(list);
        longer.back().push_back(kind);
      }
    }
    all = std::move(longer);
  }
  return all;
}

}  // namespace

TEST_CASE("local parts are nested chunks, and together the tensor") {
  const std::vector<Placement> kinds = {Replicate(), Shard(0), Shard(1), Partial()};
  const std::vector<DeviceMesh> meshes = {
      DeviceMesh::make({"a"}, {3}), DeviceMesh::make({"a", "b"}, {2, 3}),
      DeviceMesh::make({"a", "b"}, {4, 1}), DeviceMesh::make({"a", "b", "c"}, {2, 2, 3})};
  const std::vector<Dims> shapes = {{8, 6}, {7, 3}, {1, 5}, {6, 0}, {5, 4, 3}};
  for (const DeviceMesh& mesh : meshes) {
    std::vector<int> order(static_cast<std::size_t>(mesh.ndim()));
    std::iota(order.begin(), order.end(), 0);
    do {
      for (const auto& placements : all_placements(mesh.ndim(), kinds)) {
        const Layout layout = Layout::make(mesh, placements, order);
        for (const Dims& shape : shapes) {
          INFO(to_string(mesh) << " " << to_string(layout) << " " << to_string(shape));
          Indices copies(static_cast<std::size_t>(shape.product()));
          int holders = 1;
          for (int axis = 0; axis < mesh.ndim(); ++axis) {
            holders *= layout.placement(axis).is_shard() ? 1 : mesh.axis_size(axis);
          }
          bool even = true;
          Dims largest = Dims::filled(shape.size(), 0);
          const Dims first = local_shape(shape, layout, Dims::filled(mesh.ndim(), 0));
          for (const int rank : mesh.ranks()) {
            const Dims at = *mesh.coordinates_of(rank);
            const auto held = nested_chunks(shape, mesh, placements, order, at);
            const LocalPart part = local_part(shape, layout, rank);
            bool right = part.shape == local_shape(shape, layout, at) &&
                         part.offset == local_offset(shape, layout, at);
            Indices expected = {0};
            for (int dim = 0; dim < shape.size(); ++dim) {
              const Indices& own = held[static_cast<std::size_t>(dim)];
              right &= part.shape[dim] == static_cast<std::int64_t>(own.size());
              right &= own.empty() || part.offset[dim] == own.front();
              largest[dim] = std::max(largest[dim], part.shape[dim]);
              Indices longer;
              for (const std::int64_t i : expected) {
                for (const std::int64_t j : own) {
                  longer.push_back(i * shape[dim] + j);
                }
              }
              expected = std::move(longer);
            }
            even &= part.shape == first;
            CHECK(right);
            CHECK(run_indices(shape, layout, at) == expected);
            for (const std::int64_t i : expected) {
              ++copies[static_cast<std::size_t>(i)];
            }
          }
          CHECK(std::all_of(copies.begin(), copies.end(), [&](auto n) { return n == holders; }));
          CHECK(padded_local_shape(shape, layout) == largest);
          CHECK(shards_evenly(shape, layout) == even);
        }
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("runs are as long as they can be") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
  const auto runs = [&](const Layout& layout, Dims at) {
    std::vector<std::vector<std::int64_t>> all;
    for_each_run({4, 2, 3}, layout, at,
                 [&](std::int64_t first, std::int64_t length) { all.push_back({first, length}); });
    return all;
  };
  using Runs = std::vector<std::vector<std::int64_t>>;
  CHECK(runs(Layout::replicated(mesh), {0, 0}) == Runs{{0, 24}});
  CHECK(runs(Layout::make(mesh, {Shard(0), Replicate()}), {1, 0}) == Runs{{12, 12}});
  CHECK(runs(Layout::make(mesh, {Shard(1), Shard(0)}), {1, 1}) == Runs{{15, 3}, {21, 3}});
  CHECK(runs(Layout::make(mesh, {Shard(2), Shard(0)}), {1, 0}) ==
        Runs{{2, 1}, {5, 1}, {8, 1}, {11, 1}});
  int scalar = 0;
  for_each_run({}, Layout::replicated(mesh), {0, 0}, [&](auto first, auto length) {
    CHECK(first == 0);
    CHECK(length == 1);
    ++scalar;
  });
  CHECK(scalar == 1);
}

TEST_CASE("fully sharded over tensor parallel cuts by the tensor axis first") {
  // The example of PyTorch's _StridedShard: 8 rows on a 2 x 2 mesh.
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const Layout column = Layout::make(mesh, {Replicate(), Shard(0)});
  const Layout layout = column.with_placement(0, Shard(0));
  CHECK(to_string(layout) == "[StridedShard(0, 2), Shard(0)]");
  CHECK(layout == Layout::make(mesh, {Shard(0), Shard(0)}, {1, 0}));
  CHECK(layout == Layout::make(mesh, {StridedShard(0, 2), Shard(0)}));
  CHECK(layout == Layout::parse(mesh, "[StridedShard(0,2), Shard(0)]"));
  CHECK_FALSE(layout == Layout::make(mesh, {Shard(0), Shard(0)}));
  CHECK(layout.placement(0) == Shard(0));
  CHECK_FALSE(layout.has_default_order());
  CHECK(layout.is_innermost(0));
  CHECK_FALSE(layout.is_innermost(1));
  const auto rows = [&](Dims at) { return local_offset({8}, layout, at)[0]; };
  CHECK(rows({0, 0}) == 0);
  CHECK(rows({0, 1}) == 4);
  CHECK(rows({1, 0}) == 2);
  CHECK(rows({1, 1}) == 6);
  CHECK(local_shape({8}, layout, {1, 1}) == Dims{2});
}

TEST_CASE("every shard order survives its printed form") {
  for (const DeviceMesh& mesh : {DeviceMesh::make({"a", "b", "c", "d"}, {2, 3, 2, 4}),
                                 DeviceMesh::make({"a", "b", "c", "d"}, {2, 1, 2, 2})}) {
    std::vector<int> order = {0, 1, 2, 3};
    do {
      for (const Placement b : {Shard(0), Shard(1), Replicate(), Partial(ReduceOp::max)}) {
        const std::vector<Placement> placements = {Shard(0), b, Shard(0), Shard(0)};
        const Layout layout = Layout::make(mesh, placements, order);
        CHECK(Layout::parse(mesh, to_string(layout)) == layout);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("layouts of one meaning are one object") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b", "c"}, {2, 1, 2});
  // The order between different dims, of axes without shards, and of an axis of one rank is moot.
  CHECK(Layout::make(mesh, {Shard(0), Replicate(), Shard(1)}, {2, 1, 0}) ==
        Layout::make(mesh, {Shard(0), Replicate(), Shard(1)}));
  const Layout plain = Layout::make(mesh, {Shard(0), Shard(0), Shard(0)});
  CHECK(Layout::make(mesh, {Shard(0), Shard(0), Shard(0)}, {1, 0, 2}) == plain);
  CHECK(Layout::make(mesh, {Shard(0), Shard(0), Shard(0)}, {0, 2, 1}) == plain);
  CHECK(plain.has_default_order());
  CHECK_FALSE(Layout::make(mesh, {Shard(0), Shard(0), Shard(0)}, {2, 1, 0}) == plain);
  CHECK_FALSE(Layout::make(mesh, {Shard(0), Replicate(), Shard(0)}) == plain);
  CHECK_FALSE(Layout::make(mesh, {Partial(), Replicate(), Replicate()}) ==
              Layout::make(mesh, {Partial(ReduceOp::avg), Replicate(), Replicate()}));
  CHECK(Layout::replicated(mesh).is_replicated());
  CHECK(plain.shard_count(0) == 4);
  CHECK(plain.axes_sharding(1).empty());
  CHECK(plain.with_placement(0, Replicate()).with_placement(0, Shard(0)) ==
        Layout::make(mesh, {Shard(0), Shard(0), Shard(0)}, {2, 0, 1}));
  CHECK(plain.with_placement(1, Shard(0)) == plain);

  std::vector<Layout> made(6);
  std::vector<std::thread> threads;
  threads.reserve(made.size());
  for (Layout& layout : made) {
    threads.emplace_back([&layout] {
      for (int i = 1; i < 40; ++i) {
        const DeviceMesh own = DeviceMesh::make({"t", "u"}, {i, 2});
        layout = Layout::make(own, {Shard(0), Shard(0)}, {1, 0});
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(std::all_of(made.begin(), made.end(), [&](const Layout& l) { return l == made[0]; }));
}

TEST_CASE("placements are read from their text") {
  CHECK(sizeof(Placement) <= 8);
  for (const Placement placement :
       {Shard(0), Shard(-2), Replicate(), Partial(), Partial(ReduceOp::product), StridedShard(1, 4),
        NormPartial(2), NormPartial(0.5), NormPartial(1e6)}) {
    CHECK(parse_placement(to_string(placement)) == placement);
  }
  CHECK(to_string(NormPartial(2)) == "Partial(norm(2))");
  CHECK(parse_placement("Partial( norm(2.50) )") == NormPartial(2.5));
  CHECK(NormPartial(2).is_partial());
  CHECK(NormPartial(2).norm_order() == 2);
  CHECK(NormPartial(2) != NormPartial(3));
  CHECK(NormPartial(2).bits() != Partial().bits());
  CHECK(Partial().norm_order() == 0);
  CHECK(StridedShard(0, 3).norm_order() == 0);
  // Norms that are sums or extrema.
  CHECK(parse_placement("Partial(norm(1))") == Partial());
  CHECK(NormPartial(0) == Partial());
  CHECK(parse_placement("Partial(norm(inf))") == Partial(ReduceOp::max));
  CHECK(parse_placement("Partial(norm(-inf))") == Partial(ReduceOp::min));
  for (const double order : {-2.0, 0.1, 1e300, 1e-40}) {
    CHECK_FALSE(has_norm_partial(order));
    CHECK_THAT(error_of([&] { NormPartial(order); }), Contains("no partial norm has this order"));
  }
  CHECK(parse_placement(" Partial ( ) ") == Partial(ReduceOp::sum));
  CHECK(parse_placement("Partial") == Partial(ReduceOp::sum));
  CHECK(parse_placement("Replicate()") == Replicate());
  CHECK(parse_placements("[]").empty());
  CHECK(parse_placements("[Shard(1), StridedShard(0, 2),Replicate]") ==
        std::vector<Placement>{Shard(1), StridedShard(0, 2), Replicate()});
  for (const char* wrong :
       {"", "Shard", "Shard()", "Shard(x)", "Shard(0", "Shard(99)", "Shard(0))", "shard(0)",
        "Partial(mean)", "Partial(norm)", "Partial(norm())", "Partial(norm(x))", "Replicate(0)",
        "StridedShard(0)", "StridedShard(0, 0)"}) {
    INFO(wrong);
    CHECK_THAT(error_of([&] { parse_placement(wrong); }), Contains("expected Shard(dim)"));
  }
  for (const char* wrong : {"Shard(0)", "[Shard(0)", "[Shard(0),]", "[,]", "[Shard(0) Shard(1)]"}) {
    INFO(wrong);
    CHECK_THROWS_AS(parse_placements(wrong), Error);
  }
  CHECK(resolved(Shard(-1), 3) == Shard(2));
  CHECK(resolved(StridedShard(-3, 2), 3) == StridedShard(0, 2));
  CHECK(resolved(Partial(), 0) == Partial());
  CHECK_THROWS_AS(resolved(Shard(2), 2), Error);
}

TEST_CASE("a layout that makes no sense is an error that says why") {
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const auto error = [&](std::vector<Placement> placements, std::vector<int> order = {}) {
    return error_of([&] { Layout::make(mesh, placements, order); });
  };
  CHECK_THAT(error({Shard(0)}), Contains("1 placements for 2 axes"));
  CHECK_THAT(error({Shard(-1), Replicate()}), Contains("Shard(-1)"));
  CHECK_THAT(error({Shard(8), Replicate()}), Contains("from 0 to 7"));
  CHECK_THAT(error({Shard(0), Shard(0)}, {0}), Contains("misses axis 1 ('tensor')"));
  CHECK_THAT(error({Shard(0), Shard(0)}, {0, 0}), Contains("distinct axes"));
  CHECK_THAT(error({Shard(0), Shard(0)}, {0, 2}), Contains("distinct axes"));
  CHECK_THAT(error({StridedShard(0, 3), Shard(0)}), Contains("split factor"));
  CHECK_THAT(error({Shard(0), StridedShard(0, 2)}), Contains("axis 'tensor'"));
  CHECK_THAT(error({StridedShard(0, 2), Shard(0)}, {1, 0}), Contains("one of the two"));
  CHECK_THAT(
      error_of([&] { check_layout_fits(Layout::make(mesh, {Shard(2), Replicate()}), 2, "zeros"); }),
      Contains("zeros: ") && Contains("dim 2 of a tensor with 2 dims"));
  CHECK_THROWS_AS(local_part({4}, Layout::make(mesh, {Shard(1), Replicate()}), {0, 0}), Error);
  CHECK_THROWS_AS(local_part({4}, Layout::replicated(mesh), 4), Error);
  CHECK_THROWS_AS(Layout::replicated(DeviceMesh()), Error);
}
