// Redistribution between random pairs of layouts against cutting and reducing plain arrays: values
// and gradients, at once and asynchronously, on one mesh and between two.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "generators.hpp"
#include "property.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;

#include "../placement/simulation.hpp"
#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::on_ranks;
using simulation::Array;
using simulation::layout_of;
using simulation::near;

namespace {

testing::Partials all_partials() {
  testing::Partials partials{.values = {}, .norms = {"Partial(norm(2))", "Partial(norm(3))"}};
  for (int op = 0; op < reduce_op_count; ++op) {
    partials.values.push_back(to_string(Partial(static_cast<ReduceOp>(op))));
  }
  return partials;
}

struct Conversion {
  Layout from, to;
  Dims shape;
  bool at_once = true;
};

std::string text_of(const Conversion& c) {
  return to_string(c.from) + " -> " + to_string(c.to) + " of " + to_string(c.shape) + " on " +
         to_string(c.to.mesh()) + (c.at_once ? "" : ", asynchronously") +
         (c.from.mesh() == c.to.mesh() ? "\n" + explain(c.from, c.to, c.shape, 8) : "");
}

Tensor tensor_of(const Array& array) {
  return from_values(std::span<const double>(array.values), array.shape);
}

Array array_of(const Tensor& local) { return {local.shape(), to_doubles(local)}; }

Tensor redistributed(const Tensor& x, const Conversion& c) {
  if (c.at_once || !(x.layout().mesh() == c.to.mesh())) {
    return redistribute(x, c.to);
  }
  PendingRedistribution pending = redistribute_async(x, c.to);
  return pending.wait();
}

/// What one rank ends with.
struct Outcome {
  Array value;
  Array gradient;
};

/// Carries it out on ranks that are threads, with a gradient for what it becomes.
void check_conversion(const Conversion& c) {
  const DeviceMesh from = c.from.mesh();
  const DeviceMesh to = c.to.mesh();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(from.size()));
  const std::vector<Array> held = simulation::some_locals(c.from, c.shape);
  const Array gradient = simulation::some_locals(Layout::replicated(to), c.shape).front();
  on_ranks(from.size(), [&](int rank) {
    try {
      const auto place = static_cast<std::size_t>(from.position_of(rank));
      Tensor x = detached(from_local(tensor_of(held[place]), c.from, c.shape));
      x.set_requires_grad();
      const Tensor y = redistributed(x, c);
      check(y.layout() == c.to && y.shape() == c.shape, "layout and shape");
      const Tensor g = distribute(tensor_of(gradient), gradient_layout(c.to));
      backward({&y, 1}, {&g, 1});
      check(x.grad().layout() == gradient_layout(c.from), "the gradient's layout");
      outcomes[static_cast<std::size_t>(rank)] = {array_of(y.local()), array_of(x.grad().local())};
    } catch (const Error& error) {
      fail(text_of(c) + ": " + error.what());
    }
  });
  const Array global = simulation::value_of(c.from, held, c.shape);
  std::vector<Array> after;
  for (const int rank : to.ranks()) {
    after.push_back(outcomes[static_cast<std::size_t>(rank)].value);
  }
  after = simulation::reduce_partials(c.to, after);
  std::size_t position = 0;
  for (const int rank : to.ranks()) {
    check(near(after[position++], simulation::cut(global, c.to, *to.coordinates_of(rank))),
          "the values of rank " + std::to_string(rank) + ": " + text_of(c));
    check(near(outcomes[static_cast<std::size_t>(rank)].gradient,
               simulation::cut(gradient, c.from, *from.coordinates_of(rank))),
          "the gradients of rank " + std::to_string(rank) + ": " + text_of(c));
  }
}

/// Between layouts of two meshes of the same ranks.
void check_between(const DeviceMesh& from, const DeviceMesh& to) {
  testing::property("between meshes", 100, [&] {
    const Dims shape(*testing::shapes(3, 12));
    const testing::PlacedText before =
        *testing::placements(from.ndim(), shape.size(), all_partials());
    const testing::PlacedText after =
        *testing::placements(to.ndim(), shape.size(), {.values = all_partials().values});
    check_conversion({layout_of(from, before.placements, before.order),
                      layout_of(to, after.placements, after.order), shape});
  });
}

}  // namespace

TEST_CASE("any layout becomes any other: values and gradients") {
  testing::property("redistribution", 1500, [] {
    const testing::Conversion c =
        *testing::conversions({.ranks = 8, .extent = 12, .partials = all_partials()});
    const bool at_once = *rc::gen::arbitrary<bool>();
    std::vector<std::string> axes = {"a", "b", "c"};
    axes.resize(c.mesh.size());
    const DeviceMesh mesh = DeviceMesh::make(axes, Dims(c.mesh));
    check_conversion({layout_of(mesh, c.from.placements, c.from.order),
                      layout_of(mesh, c.to.placements, c.to.order), Dims(c.shape), at_once});
  });
}

TEST_CASE("a tensor goes to another mesh of the same ranks and back: values and gradients") {
  const DeviceMesh line = DeviceMesh::make({"line"}, {6}, {4, 2, 0, 5, 3, 1});
  const DeviceMesh grid = DeviceMesh::make({"a", "b"}, {2, 3});
  check_between(line, grid);
  check_between(grid, line);
}

TEST_CASE("a tensor goes to a mesh of other ranks") {
  const DeviceMesh first = DeviceMesh::make({"a", "b"}, {2, 2}, {0, 1, 2, 3});
  const DeviceMesh second = DeviceMesh::make({"c"}, {3}, {3, 5, 4});
  const DeviceMesh corner = DeviceMesh::make({"d"}, {2}, {2, 1});
  on_ranks(6, [&](int) {
    const int rank = current_rank();
    const Tensor whole = dtensor_test::numbered({5, 4});
    const SpecHandle spec =
        Spec::make(Layout::make(first, {Shard(0), Partial()}), whole.shape(), DType::f64);
    const Tensor x = first.contains(rank) ? distribute(whole, spec->layout) : Tensor();
    const Layout to = Layout::make(second, {Shard(1)});
    const CommunicationReport report;
    const Tensor y = redistribute_between(x, *spec, to);
    check(static_cast<bool>(y) == second.contains(rank), "only the second mesh has it");
    check(!y || dtensor_test::values(y) == dtensor_test::part_of(whole, to), "its parts");
    check(report.count("send") == 1, "it was sent");
    if (first.contains(rank)) {
      // To some of the ranks: the others are left with nothing.
      const Tensor z = redistribute(x, Layout::make(corner, {Shard(0)}));
      check(static_cast<bool>(z) == corner.contains(rank), "a part of the mesh");
      check(!z || dtensor_test::values(z) == dtensor_test::part_of(whole, z.layout()), "its parts");
      check(dtensor_test::contains(dtensor_test::error_of([&] { redistribute(x, to); }),
                                   "rank 5 of mesh(c=3) of ranks 3 5 4 is not in the tensor's"),
            "a mesh with strangers is refused");
      Tensor needy = detached(x);
      needy.set_requires_grad();
      check(dtensor_test::contains(
                dtensor_test::error_of([&] { redistribute_between(needy, *spec, to); }),
                "do not have the same ranks"),
            "a gradient that cannot come back is refused");
    } else {
      check(dtensor_test::contains(
                dtensor_test::error_of([&] { redistribute_between(y, *spec, to); }),
                "rank " + std::to_string(rank) + " gave [5, 4] as"),
            "a tensor of another layout is refused");
    }
  });
}

TEST_CASE("an asynchronous redistribution waits for nobody until it is asked") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {3});
  on_ranks(3, [&](int) {
    const Tensor whole = dtensor_test::numbered({7, 2});
    Tensor x = distribute(whole, Layout::make(mesh, {Shard(0)}));
    x.set_requires_grad();
    collective::Communicator& all = communicator(mesh, 0);
    std::vector<PendingRedistribution> pending;
    if (current_rank() == 0) {
      // The others issue theirs only after this rank's message: it must get past the call.
      pending.push_back(redistribute_async(x, Layout::replicated(mesh)));
      check(!pending[0].done(), "nobody else has come");
      for (const int peer : {1, 2}) {
        all.send(whole.raw_data(), 1, DType::f64, peer);
      }
    } else {
      double word = 0;
      all.receive(&word, 1, DType::f64, 0);
      pending.push_back(redistribute_async(x, Layout::replicated(mesh)));
    }
    const Tensor y = pending[0].wait();
    check(pending[0].done() && pending[0].wait().same_as(y), "once is enough");
    check(dtensor_test::values(y) == to_doubles(whole), "the value");
    const Tensor g = distribute(whole, Layout::make(mesh, {Shard(1)}));
    backward({&y, 1}, {&g, 1});
    check(dtensor_test::values(x.grad()) == dtensor_test::part_of(whole, x.layout()),
          "the gradient");
  });
}

TEST_CASE("a redistribution can be differentiated twice") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
  on_ranks(4, [&](int) {
    // f = sum(r(x)^3), f' = 3x^2, the sum of f' has the gradient 6x.
    const Tensor whole = dtensor_test::numbered({5, 3});
    Tensor x = distribute(whole, Layout::make(mesh, {Shard(0), Replicate()}));
    x.set_requires_grad();
    const Tensor y = redistribute(x, Layout::make(mesh, {Shard(1), Shard(0)}));
    const Tensor f = ops::sum(ops::mul(y, ops::square(y)));
    const Tensor none;
    const BackwardOptions options{.create_graph = true};
    const Tensor first = gradients({&f, 1}, {&none, 1}, {&x, 1}, options)[0];
    const Tensor s = ops::sum(first);
    const Tensor second = gradients({&s, 1}, {&none, 1}, {&x, 1})[0];
    const std::vector<double> mine = dtensor_test::values(x);
    check(second.layout() == x.layout(), "the layout");
    for (std::size_t i = 0; i < mine.size(); ++i) {
      check(dtensor_test::values(first)[i] == 3 * mine[i] * mine[i], "the first derivative");
      check(dtensor_test::values(second)[i] == 6 * mine[i], "the second derivative");
    }
  });
}
