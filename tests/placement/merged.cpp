// Steps over several axes at once, transfers between any two layouts, and pictures.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.calls;
import tessera.placement;

#include "simulation.hpp"

using namespace tessera;
using Catch::Contains;
using collective::CallKind;
using Axes = InlineVector<int, 4>;

namespace {

const Step& only_step(const Plan& plan) {
  INFO(explain(plan));
  REQUIRE(plan.steps.size() == 1);
  return plan.steps[0];
}

}  // namespace

TEST_CASE("steps of one kind over several axes are one collective where that is cheaper") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b", "c"}, {2, 3, 2});
  const Layout whole = Layout::replicated(mesh);
  const Layout sharded = Layout::make(mesh, {Shard(0), Shard(0), Shard(0)}, {2, 0, 1});

  const Step& gather = only_step(plan_redistribute(sharded, whole, {24, 5}, 4));
  CHECK(gather.kind == CallKind::all_gather);
  CHECK(gather.axes == Axes{2, 0, 1});
  CHECK(gather.bytes == 11 * 2 * 5 * 4);  // chunks of 2 rows from 11 others
  CHECK(axis_names(gather) == "c+a+b");
  CHECK(rank_count(gather) == 12);

  const Layout terms = Layout::make(mesh, {Partial(), Partial(), Partial()});
  const Step& reduce = only_step(plan_redistribute(terms, whole, {24, 5}, 4));
  CHECK(reduce.kind == CallKind::all_reduce);
  CHECK(reduce.bytes == 2 * 11 * 24 * 5 * 4 / 12);

  const Step& scatter = only_step(plan_redistribute(terms, sharded, {24, 5}, 4));
  CHECK(scatter.kind == CallKind::reduce_scatter);
  CHECK(scatter.axes == Axes{2, 0, 1});
  CHECK(scatter.bytes == 11 * 2 * 5 * 4);

  // Different reductions are not merged.
  const Layout mixed = Layout::make(mesh, {Partial(), Partial(ReduceOp::max), Replicate()});
  CHECK(plan_redistribute(mixed, whole, {24, 5}, 4).steps.size() == 2);
  // A slow axis is not asked to carry what a fast one can: its shard is gathered first, when small.
  const DeviceMesh slow = DeviceMesh::make({"near", "far"}, {4, 2});
  set_link(slow, 1, {20e-6, 1e8});
  const Layout both = Layout::make(slow, {Shard(0), Shard(0)}, {0, 1});
  const Plan& plan = plan_redistribute(both, Layout::replicated(slow), {8, 1 << 20}, 4);
  REQUIRE(plan.steps.size() == 2);
  CHECK(plan.steps[0].axes == Axes{1});
  CHECK_THAT(explain(sharded, whole, {24, 5}, 4),
             Contains("1. all_gather on axes 'c+a+b': Shard(0) -> Replicate, 440 B received") &&
                 Contains("now [Replicate, Replicate, Replicate]") && Contains("cost"));
}

TEST_CASE("another shard order is one exchange of what each rank lacks") {
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const std::vector<Placement> shards = {Shard(0), Shard(0)};
  const Layout from = Layout::make(mesh, shards);
  const Layout to = Layout::make(mesh, shards, std::vector<int>{1, 0});
  const Step& step = only_step(plan_redistribute(from, to, {8, 1024}, 4));
  CHECK(step.kind.is_exchange());
  CHECK(step.bytes == 2 * 1024 * 4);  // ranks 1 and 2 change places, 0 and 3 keep theirs
  CHECK_THAT(explain(from, to, {8, 1024}, 4), Contains("exchange on axes 'shard+tensor': 8.0 KiB"));
  // A transposed grid moves half of each part at most, not the whole tensor.
  const Layout across = Layout::make(mesh, {Shard(0), Shard(1)});
  const Layout back = Layout::make(mesh, {Shard(1), Shard(0)});
  const Plan& grid = plan_redistribute(across, back, {512, 512}, 4);
  CHECK(only_step(grid).kind.is_exchange());
  CHECK(only_step(grid).bytes == 256 * 256 * 4);
}

TEST_CASE("transfers give every rank each of its elements once, from a rank that has it") {
  const std::vector<Placement> kinds = {Replicate(), Shard(0), Shard(1)};
  const DeviceMesh here = DeviceMesh::make({"a", "b"}, {2, 3});
  const DeviceMesh there = DeviceMesh::make({"x", "y"}, {2, 2}, {7, 4, 9, 1});
  const std::vector<Layout> sources = simulation::all_layouts(here, kinds);
  std::vector<Layout> destinations = simulation::all_layouts(there, kinds);
  destinations.insert(destinations.end(), sources.begin(), sources.end());
  for (const Dims& shape : {Dims{8, 6}, Dims{5, 1}, Dims{2, 3}, Dims{0, 4}}) {
    for (const Layout& from : sources) {
      for (const Layout& to : destinations) {
        std::map<int, std::set<std::pair<std::int64_t, std::int64_t>>> got;
        bool right = true;
        for (const Transfer& t : transfers(from, to, shape)) {
          const LocalPart held = local_part(shape, from, t.source);
          for (std::int64_t i = t.box.offset[0]; i < t.box.offset[0] + t.box.shape[0]; ++i) {
            for (std::int64_t j = t.box.offset[1]; j < t.box.offset[1] + t.box.shape[1]; ++j) {
              right &= i >= held.offset[0] && i < held.offset[0] + held.shape[0];
              right &= j >= held.offset[1] && j < held.offset[1] + held.shape[1];
              right &= got[t.destination].insert({i, j}).second;
            }
          }
          // Nothing travels that its destination has.
          if (t.source != t.destination && from.mesh().contains(t.destination)) {
            const LocalPart own = local_part(shape, from, t.destination);
            right &= !(own.offset == held.offset && own.shape == held.shape);
          }
        }
        for (const int rank : to.mesh().ranks()) {
          const LocalPart wanted = local_part(shape, to, rank);
          right &= static_cast<std::int64_t>(got[rank].size()) == wanted.shape.product();
          for (const auto& [i, j] : got[rank]) {
            right &= i >= wanted.offset[0] && i < wanted.offset[0] + wanted.shape[0];
            right &= j >= wanted.offset[1] && j < wanted.offset[1] + wanted.shape[1];
          }
        }
        if (!right) {
          FAIL_CHECK(to_string(from) << " to " << to_string(to) << ", " << to_string(shape));
        }
      }
    }
  }
  const Layout terms = Layout::make(here, {Partial(), Replicate()});
  CHECK_THROWS_AS(transfers(terms, sources[0], {2, 2}), Error);
}

TEST_CASE("a picture shows which ranks hold which part") {
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  CHECK(draw_text(Layout::make(mesh, {Shard(0), Shard(1)}), {5, 4}) ==
        "[5, 4] [Shard(0), Shard(1)] on mesh(shard=2, tensor=2)\n\n"
        "        0:2   2:4\n"
        "      +-----+-----+\n"
        "  0:3 |  0  |  1  |\n"
        "      +-----+-----+\n"
        "  3:5 |  2  |  3  |\n"
        "      +-----+-----+\n\n"
        "  rank 0 (shard 0, tensor 0): [0:3, 0:2]\n"
        "  rank 1 (shard 0, tensor 1): [0:3, 2:4]\n"
        "  rank 2 (shard 1, tensor 0): [3:5, 0:2]\n"
        "  rank 3 (shard 1, tensor 1): [3:5, 2:4]\n");
  // Terms and copies, an order of cuts, empty parts, and tensors of other numbers of dims.
  CHECK_THAT(draw_text(Layout::make(mesh, {Partial(), Replicate()}), {2, 2}),
             Contains("| (0,1)+(2,3) |"));
  CHECK_THAT(draw_text(Layout::make(mesh, {Partial(), Partial(ReduceOp::max)}), {4}),
             Contains("(0 max 1)+(2 max 3)"));
  CHECK_THAT(draw_text(Layout::parse(mesh, "[StridedShard(0, 2), Shard(0)]"), {8}),
             Contains("dim 0 is cut by 'tensor', then 'shard'") &&
                 Contains("rank 1 (shard 0, tensor 1): [4:6]"));
  CHECK_THAT(draw_text(Layout::make(mesh, {Shard(0), Shard(0)}), {3}),
             Contains("rank 3 (shard 1, tensor 1): [3:3], empty"));
  CHECK_THAT(draw_text(Layout::make(mesh, {Shard(2), Replicate()}), {2, 2, 2}),
             !Contains("+--") && Contains("rank 2 (shard 1, tensor 0): [0:2, 0:2, 1:2]"));
  CHECK_THAT(draw_text(Layout::replicated(mesh), {}), Contains("| 0,1,2,3 |"));
  CHECK_THROWS_AS(draw_text(Layout::make(mesh, {Shard(1), Replicate()}), {4}), Error);
}

TEST_CASE("the picture in SVG has a box for each part, wide enough for its label") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 3});
  const std::string svg = draw_svg(Layout::make(mesh, {Shard(0), Shard(1)}), {4, 6});
  const auto count = [&](const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) {
      ++n;
    }
    return n;
  };
  CHECK(count("stroke=") == 6);
  CHECK(count("<text") == 1 + 3 + 2 + 6);
  CHECK(count("</text>") == count("<text"));
  CHECK(svg.starts_with("<svg xmlns="));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK_THAT(draw_svg(Layout::make(mesh, {Replicate(), Replicate()}), {4, 6}),
             Contains(">0,1,2,3,4,5</text>"));
}
