#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "generators.hpp"
#include "property.hpp"

import tessera.base;
import tessera.mesh;
import tessera.calls;
import tessera.placement;

#include "simulation.hpp"

using namespace tessera;
using Catch::Contains;
using collective::CallKind;
using simulation::all_layouts;
using simulation::Array;
using simulation::layout_of;
using simulation::some_locals;
using simulation::value_of;

using tessera::testing::error_of;
namespace {

/// Carries out the plan on all ranks and compares with cutting the global tensor directly. Returns
/// the plan in words if it is wrong.
std::string wrong_plan(const Layout& from, const Layout& to, const Dims& shape) {
  const DeviceMesh& mesh = from.mesh();
  const Plan& plan = plan_redistribute(from, to, shape, 4);
  std::vector<Array> held = some_locals(from, shape);
  const Array global = value_of(from, held, shape);
  Layout at = from;
  double cost = 0;
  bool chained = true;
  for (const Step& step : plan.steps) {
    chained &= step.before == at && !(step.after == at);
    held = simulation::execute(step, mesh, held, shape);
    at = step.after;
    cost += step.cost;
    std::size_t position = 0;
    for (const int rank : mesh.ranks()) {
      chained &= held[position++].shape == local_part(shape, at, rank).shape;
    }
  }
  bool right = chained && at == to && cost == Approx(plan.cost);
  held = simulation::reduce_partials(to, held);
  std::size_t position = 0;
  for (const int rank : mesh.ranks()) {
    right &=
        simulation::near(held[position++], simulation::cut(global, to, *mesh.coordinates_of(rank)));
  }
  return right ? "" : explain(plan);
}

void check_plan(const Layout& from, const Layout& to, const Dims& shape) {
  if (const std::string wrong = wrong_plan(from, to, shape); !wrong.empty()) {
    FAIL_CHECK(wrong);
  }
}

std::vector<StepKind> kinds_of(const Plan& plan) {
  std::vector<StepKind> kinds;
  kinds.reserve(plan.steps.size());
  for (const Step& step : plan.steps) {
    kinds.push_back(step.kind);
  }
  return kinds;
}

using Kinds = std::vector<StepKind>;
using Axes = InlineVector<int, 4>;

}  // namespace

TEST_CASE("plans between all pairs of layouts keep the tensor: one axis") {
  const std::vector<Placement> kinds = {Replicate(),
                                        Shard(0),
                                        Shard(1),
                                        Partial(),
                                        Partial(ReduceOp::avg),
                                        Partial(ReduceOp::max),
                                        Partial(ReduceOp::min),
                                        Partial(ReduceOp::product)};
  for (const int size : {1, 2, 3, 4}) {
    const DeviceMesh mesh = DeviceMesh::make({"a"}, {size});
    const std::vector<Layout> layouts = all_layouts(mesh, kinds);
    for (const Dims& shape : {Dims{8, 4}, Dims{5, 3}, Dims{1, 6}, Dims{0, 2}}) {
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) {
          check_plan(from, to, shape);
        }
      }
    }
  }
}

TEST_CASE("plans between all pairs of layouts keep the tensor: two axes") {
  const std::vector<Placement> kinds = {Replicate(),
                                        Shard(0),
                                        Shard(1),
                                        Partial(),
                                        Partial(ReduceOp::avg),
                                        Partial(ReduceOp::max),
                                        Partial(ReduceOp::product)};
  for (const Dims& sizes : {Dims{2, 2}, Dims{2, 3}, Dims{1, 3}, Dims{4, 2}}) {
    const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, sizes);
    const std::vector<Layout> layouts = all_layouts(mesh, kinds);
    for (const Dims& shape : {Dims{8, 6}, Dims{5, 3}, Dims{3, 1, 2}}) {
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) {
          check_plan(from, to, shape);
        }
      }
    }
  }
}

TEST_CASE("plans from norms of parts keep the norm") {
  const std::vector<Placement> kinds = {
      Replicate(),           Shard(0), Partial(), Shard(1), NormPartial(2), NormPartial(3),
      Partial(ReduceOp::max)};
  int possible = 0;
  for (const Dims& sizes : {Dims{3, 1}, Dims{2, 2}, Dims{2, 3}}) {
    const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, sizes);
    const std::vector<Layout> layouts = all_layouts(mesh, kinds);
    for (const Dims& shape : {Dims{8, 6}, Dims{5, 3}}) {
      for (const Layout& from : layouts) {
        for (const Layout& to : layouts) {
          if (simulation::is_possible(from, to)) {
            check_plan(from, to, shape);
            possible += to.placement(0).is_norm() || to.placement(1).is_norm() ? 1 : 0;
          }
        }
      }
    }
  }
  CHECK(possible > 100);
}

TEST_CASE("a norm's Partial becomes a value by one reduction of f64, and no value becomes it") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {3, 2});
  const Layout norms = Layout::make(mesh, {NormPartial(2), Replicate()});
  const Plan& whole = plan_redistribute(norms, Layout::replicated(mesh), {6}, 4);
  REQUIRE(kinds_of(whole) == Kinds{CallKind::all_reduce});
  CHECK(whole.steps[0].bytes == 2 * 2 * 6 * 8 / 3);
  CHECK(norm_order(whole.steps[0]) == 2);
  CHECK_THAT(explain(whole), Contains("Partial(norm(2)) -> Replicate"));
  const Plan& cut = plan_redistribute(norms, Layout::make(mesh, {Shard(0), Replicate()}), {6}, 4);
  CHECK(kinds_of(cut) == Kinds{CallKind::reduce_scatter});
  // One reduction over both axes; another order's would have to come after it.
  const Layout both = Layout::make(mesh, {NormPartial(2), NormPartial(2)});
  CHECK(kinds_of(plan_redistribute(both, Layout::replicated(mesh), {6}, 4)) ==
        Kinds{CallKind::all_reduce});
  const Layout mixed = Layout::make(mesh, {NormPartial(2), NormPartial(3)});
  const Plan& one_by_one = plan_redistribute(mixed, Layout::replicated(mesh), {6}, 4);
  REQUIRE(kinds_of(one_by_one) == Kinds{CallKind::all_reduce, CallKind::all_reduce});
  CHECK(one_by_one.steps[0].axes == Axes{0});
  CHECK(plan_redistribute(norms, norms, {6}, 4).steps.empty());
  for (const Layout& from : {Layout::replicated(mesh), mixed}) {
    const Layout to = Layout::make(mesh, {Replicate(), NormPartial(2)});
    CHECK_THAT(error_of([&] { plan_redistribute(from, to, {6}, 4); }),
               Contains("a value cannot be converted to Partial(norm(2))") &&
                   Contains("axis 'b'") && Contains(to_string(from)));
  }
}

TEST_CASE("uneven chunks are not padded on their way") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {4});
  const Layout rows = Layout::make(mesh, {Shard(0)});
  const auto bytes = [&](const Layout& to, const Dims& shape) {
    return plan_redistribute(rows, to, shape, 4).steps.at(0).bytes;
  };
  // 9 rows are 3, 3, 3 and none: the last rank receives 9. 7 are 2, 2, 2, 1: the last one 6.
  CHECK(bytes(Layout::replicated(mesh), {9, 5}) == 9 * 5 * 4);
  CHECK(bytes(Layout::replicated(mesh), {7, 5}) == 6 * 5 * 4);
  CHECK(bytes(Layout::replicated(mesh), {2, 5}) == 2 * 5 * 4);
  // 5 columns are 2, 2, 1, none: of 9 rows the first rank lacks 6.
  CHECK(bytes(Layout::make(mesh, {Shard(1)}), {9, 5}) == 6 * 2 * 4);
}

TEST_CASE("plans between layouts of up to three axes keep the tensor") {
  testing::property("plan", 5000, [] {
    const testing::Conversion c = *testing::conversions(
        {.partials = {.values = {"Partial", "Partial(avg)", "Partial(max)"}}});
    std::vector<std::string> axes = {"a", "b", "c"};
    axes.resize(c.mesh.size());
    const DeviceMesh mesh = DeviceMesh::make(axes, Dims(c.mesh));
    const std::string wrong =
        wrong_plan(layout_of(mesh, c.from.placements, c.from.order),
                   layout_of(mesh, c.to.placements, c.to.order), Dims(c.shape));
    testing::check(wrong.empty(), wrong);
  });
}

TEST_CASE("one change of one axis takes the one step that it needs") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {3, 2});
  const std::vector<Placement> others = {Replicate(), Shard(2), Partial()};
  struct Case {
    Placement from, to;
    StepKind kind;
  };
  const std::vector<Case> cases = {
      {Replicate(), Shard(0), LocalStep::slice},
      {Shard(0), Replicate(), CallKind::all_gather},
      {Partial(), Replicate(), CallKind::all_reduce},
      {Partial(), Shard(1), CallKind::reduce_scatter},
      {Partial(ReduceOp::avg), Shard(0), CallKind::reduce_scatter},
      {Shard(0), Shard(1), CallKind::all_to_all},
      {Shard(1), Shard(0), CallKind::all_to_all},
      {Replicate(), Partial(), LocalStep::keep_first},
      {Replicate(), Partial(ReduceOp::product), LocalStep::keep_first},
      {Replicate(), Partial(ReduceOp::max), LocalStep::relabel},
      {Replicate(), Partial(ReduceOp::avg), LocalStep::relabel},
      {Shard(0), Partial(), LocalStep::pad},
  };
  for (const Dims& shape : {Dims{6, 6, 2}, Dims{512, 1024, 64}, Dims{1, 2, 3}}) {
    for (const Case& c : cases) {
      for (const Placement other : others) {
        for (const int axis : {0, 1}) {
          const auto layout = [&](Placement p) {
            return axis == 0 ? Layout::make(mesh, {p, other}) : Layout::make(mesh, {other, p});
          };
          const bool mixed = other.is_partial() && c.from.is_partial() &&
                             c.from.reduce_op() != ReduceOp::sum &&
                             c.from.reduce_op() != ReduceOp::avg;
          if (mixed) {
            continue;
          }
          const Plan& plan = plan_redistribute(layout(c.from), layout(c.to), shape, 4);
          INFO(explain(plan));
          CHECK(kinds_of(plan) == Kinds{c.kind});
          CHECK(plan.is_local() == !communicates(c.kind));
        }
      }
    }
  }
  // Nothing leads from one operation to another but the value itself.
  const Layout max = Layout::make(mesh, {Partial(ReduceOp::max), Replicate()});
  const Layout sum = Layout::make(mesh, {Partial(), Replicate()});
  const Plan& through = plan_redistribute(max, sum, {6, 6}, 4);
  REQUIRE(through.steps.size() == 2);
  CHECK(through.steps[1].kind != LocalStep::relabel);
  CHECK(plan_redistribute(max, max, {6, 6}, 4).steps.empty());
}

TEST_CASE("what slices alone can do never communicates") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b", "c"}, {2, 3, 2});
  const std::vector<Placement> kinds = {Replicate(), Shard(0), Shard(1), Partial()};
  int found = 0;
  for (const Layout& from : all_layouts(mesh, kinds)) {
    std::vector<Layout> reached = {from};
    for (std::size_t i = 0; i < reached.size(); ++i) {
      for (int axis = 0; axis < 3; ++axis) {
        for (const int dim : {0, 1}) {
          if (reached[i].placement(axis).is_replicate()) {
            reached.push_back(reached[i].with_placement(axis, Shard(dim)));
            ++found;
          }
        }
      }
    }
    for (const Layout& to : reached) {
      for (const Step& step : plan_redistribute(from, to, {700, 500}, 4).steps) {
        CHECK(step.kind == LocalStep::slice);
      }
    }
  }
  CHECK(found > 100);
}

TEST_CASE("nested shards are undone from the innermost") {
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const Layout outer_tensor = Layout::make(mesh, {Shard(0), Shard(0)}, {1, 0});
  const Layout outer_shard = Layout::make(mesh, {Shard(0), Shard(0)});
  const Layout column = Layout::make(mesh, {Replicate(), Shard(0)});

  // Unsharding a parameter of FSDP over tensor parallel gathers along the shard axis alone.
  const Plan& unshard = plan_redistribute(outer_tensor, column, {8, 8}, 4);
  REQUIRE(kinds_of(unshard) == Kinds{CallKind::all_gather});
  CHECK(unshard.steps[0].axes[0] == 0);
  // Its gradient goes back by one reduce-scatter.
  const Layout gradient = Layout::make(mesh, {Partial(), Shard(0)});
  CHECK(kinds_of(plan_redistribute(gradient, outer_tensor, {8, 8}, 4)) ==
        Kinds{CallKind::reduce_scatter});

  // Both at once where the cuts are even, the outermost first; one after another where they are
  // not.
  const Plan& whole = plan_redistribute(outer_tensor, Layout::replicated(mesh), {8, 8}, 4);
  REQUIRE(kinds_of(whole) == Kinds{CallKind::all_gather});
  CHECK(whole.steps[0].axes == Axes{1, 0});
  const Plan& other = plan_redistribute(outer_shard, Layout::replicated(mesh), {8, 8}, 4);
  CHECK(other.steps[0].axes == Axes{0, 1});
  const Plan& uneven = plan_redistribute(outer_tensor, Layout::replicated(mesh), {7, 1 << 20}, 4);
  REQUIRE(kinds_of(uneven) == Kinds{CallKind::all_gather, CallKind::all_gather});
  CHECK(uneven.steps[0].axes == Axes{0});
  CHECK(uneven.steps[1].axes == Axes{1});

  // Hybrid: scatter first, so that the all-reduce moves only the shard.
  const DeviceMesh hybrid = DeviceMesh::make({"replicate", "shard"}, {2, 4});
  const Plan& reduce =
      plan_redistribute(Layout::make(hybrid, {Partial(), Partial()}),
                        Layout::make(hybrid, {Replicate(), Shard(0)}), {4096, 1024}, 4);
  CHECK(kinds_of(reduce) == Kinds{CallKind::reduce_scatter, CallKind::all_reduce});
}

TEST_CASE("different reductions keep their order") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 4});
  const Layout mixed = Layout::make(mesh, {Partial(), Partial(ReduceOp::max)});
  const Plan& plan = plan_redistribute(mixed, Layout::replicated(mesh), {64}, 4);
  REQUIRE(plan.steps.size() >= 2);
  CHECK(plan.steps[0].axes[0] == 0);
  // The sum must be taken before the maximum, and restored after it.
  const Layout kept = Layout::make(mesh, {Partial(), Replicate()});
  check_plan(mixed, kept, {64});
  CHECK(plan_redistribute(mixed, kept, {64}, 4).steps[0].axes[0] == 0);
}

TEST_CASE("costs follow the bytes and the links") {
  const DeviceMesh mesh = DeviceMesh::make({"near", "far"}, {2, 4});
  const Layout sharded = Layout::make(mesh, {Replicate(), Shard(0)});
  const Plan& gather = plan_redistribute(sharded, Layout::replicated(mesh), {10, 8}, 4);
  // Chunks of ceil(10 / 4) = 3 rows from 3 others.
  REQUIRE(gather.steps.size() == 1);
  CHECK(gather.steps[0].bytes == 3 * 3 * 8 * 4);
  CHECK(gather.cost == Approx(Link{}.latency + 288 / Link{}.bandwidth));
  CHECK(&gather == &plan_redistribute(sharded, Layout::replicated(mesh), {10, 8}, 4));

  set_link(mesh, 1, {1e-3, 1e6});
  CHECK(link_of(mesh, 1) == Link{1e-3, 1e6});
  const Plan& slow = plan_redistribute(sharded, Layout::replicated(mesh), {10, 8}, 4);
  CHECK(slow.cost == Approx(1e-3 + 288e-6));
  CHECK_THAT(explain(slow), Contains("all_gather on axis 'far': Shard(0) -> Replicate") &&
                                Contains("288 B received") && Contains("1.29 ms") &&
                                Contains("[Replicate, Replicate]"));
  CHECK_THROWS_AS(set_link(mesh, 1, {0, 0}), Error);
  CHECK_THAT(explain(plan_redistribute(sharded, sharded, {10, 8}, 4)), Contains("nothing to do"));
}

TEST_CASE("a plan for what does not fit is an error") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  const DeviceMesh other = DeviceMesh::make({"b"}, {2});
  const Layout here = Layout::make(mesh, {Shard(1)});
  CHECK_THAT(error_of([&] { plan_redistribute(here, Layout::replicated(other), {2, 2}, 4); }),
             Contains("different meshes (mesh(a=2) and mesh(b=2))"));
  CHECK_THAT(error_of([&] { plan_redistribute(here, Layout::replicated(mesh), {2}, 4); }),
             Contains("redistribute: layout [Shard(1)] shards dim 1"));
}

TEST_CASE("a reversed shard order of four axes keeps the tensor and is cheaper than gathering it") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b", "c", "d"}, {2, 2, 2, 2});
  const std::vector<Placement> shards(4, Shard(0));
  const Layout from = Layout::make(mesh, shards);
  const Layout to = Layout::make(mesh, shards, std::vector<int>{3, 2, 1, 0});
  check_plan(from, to, {16, 3, 4});
  const Dims large = {4096, 64, 64};
  const double gathered = plan_redistribute(from, Layout::replicated(mesh), large, 4).cost;
  CHECK(plan_redistribute(from, to, large, 4).cost < gathered);
}
