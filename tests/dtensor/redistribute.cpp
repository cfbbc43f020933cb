// Redistribution between random pairs of layouts against cutting and reducing plain arrays: values
// and gradients, at once and asynchronously, on one mesh and between two.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

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
using on_ranks::check;
using simulation::Array;
using simulation::near;

namespace {

/// The same sequence on every rank and machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::size_t operator()(std::size_t sides) {
    state_ = hash_combine(state_, 1);
    return static_cast<std::size_t>(state_ % sides);
  }

 private:
  std::uint64_t state_;
};

Layout random_layout(const DeviceMesh& mesh, int dims, Dice& dice, bool with_norms) {
  std::vector<Placement> kinds = {Replicate(), Partial(), Partial(ReduceOp::avg),
                                  Partial(static_cast<ReduceOp>(dice(reduce_op_count)))};
  if (with_norms) {
    kinds.push_back(NormPartial(dice(3) == 0 ? 3 : 2));
  }
  for (int dim = 0; dim < dims; ++dim) {
    kinds.push_back(Shard(dim));
    kinds.push_back(Shard(dim));
  }
  std::vector<Placement> placements;
  std::vector<int> order;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    placements.push_back(kinds[dice(kinds.size())]);
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(dice(order.size() + 1)), axis);
  }
  return Layout::make(mesh, placements, order);
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

std::vector<Conversion> random_conversions(const DeviceMesh& from, const DeviceMesh& to,
                                           std::size_t count) {
  const std::vector<Dims> shapes = {{8, 12}, {5, 3},    {1, 6}, {7, 2, 3}, {24},
                                    {3},     {2, 5, 4}, {0, 4}, {12, 12}};
  Dice dice(from.hash());
  std::vector<Conversion> all;
  for (std::size_t i = 0; i < count; ++i) {
    const Dims& shape = shapes[dice(shapes.size())];
    const Layout before = random_layout(from, shape.size(), dice, true);
    Layout after = random_layout(to, shape.size(), dice, false);
    for (int axis = 0; from == to && axis < to.ndim(); ++axis) {
      if (before.placement(axis).is_norm() && dice(3) == 0) {
        after = after.with_placement(axis, before.placement(axis));  // norms can only stay
      }
    }
    all.push_back({before, after, shape, i % 3 != 0});
  }
  return all;
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

void check_conversions(const DeviceMesh& from, const DeviceMesh& to,
                       const std::vector<Conversion>& conversions) {
  const auto ranks = static_cast<std::size_t>(from.size());
  std::vector<std::vector<Outcome>> outcomes(ranks, std::vector<Outcome>(conversions.size()));
  std::vector<std::vector<Array>> held;
  std::vector<Array> gradients;
  for (const Conversion& c : conversions) {
    held.push_back(simulation::some_locals(c.from, c.shape));
    gradients.push_back(simulation::some_locals(Layout::replicated(to), c.shape).front());
  }
  on_ranks::run(from.size(), [&] {
    const int rank = current_rank();
    const auto mine = static_cast<std::size_t>(rank);
    for (std::size_t i = 0; i < conversions.size(); ++i) {
      const Conversion& c = conversions[i];
      try {
        const auto place = static_cast<std::size_t>(from.position_of(rank));
        Tensor x = detached(from_local(tensor_of(held[i][place]), c.from, c.shape));
        x.set_requires_grad();
        const Tensor y = redistributed(x, c);
        check(y.layout() == c.to && y.shape() == c.shape, "layout and shape");
        const Layout natural = gradient_layout(c.to);
        const Tensor g = distribute(tensor_of(gradients[i]), natural);
        backward({&y, 1}, {&g, 1});
        check(x.grad().layout() == gradient_layout(c.from), "the gradient's layout");
        outcomes[mine][i] = {array_of(y.local()), array_of(x.grad().local())};
      } catch (const Error& error) {
        fail(text_of(c) + ": " + error.what());
      }
    }
  });
  for (std::size_t i = 0; i < conversions.size(); ++i) {
    const Conversion& c = conversions[i];
    const Array global = simulation::value_of(c.from, held[i], c.shape);
    std::vector<Array> after;
    for (const int rank : to.ranks()) {
      after.push_back(outcomes[static_cast<std::size_t>(rank)][i].value);
    }
    after = simulation::reduce_partials(c.to, after);
    bool right = true;
    std::size_t position = 0;
    for (const int rank : to.ranks()) {
      right &= near(after[position++], simulation::cut(global, c.to, *to.coordinates_of(rank)));
      right &= near(outcomes[static_cast<std::size_t>(rank)][i].gradient,
                    simulation::cut(gradients[i], c.from, *from.coordinates_of(rank)));
    }
    if (!right) {
      FAIL_CHECK(text_of(c));
    }
  }
}

}  // namespace

TEST_CASE("any layout becomes any other: values and gradients") {
  for (const Dims& sizes : {Dims{1}, Dims{2}, Dims{3}, Dims{4}, Dims{2, 2}, Dims{3, 2}, Dims{1, 4},
                            Dims{2, 2, 2}, Dims{2, 1, 3}}) {
    std::vector<std::string> names = {"a", "b", "c"};
    names.resize(static_cast<std::size_t>(sizes.size()));
    const DeviceMesh mesh = DeviceMesh::make(names, sizes);
    check_conversions(mesh, mesh, random_conversions(mesh, mesh, 60 * names.size() * names.size()));
  }
}

TEST_CASE("a tensor goes to another mesh of the same ranks and back: values and gradients") {
  const DeviceMesh line = DeviceMesh::make({"line"}, {6}, {4, 2, 0, 5, 3, 1});
  const DeviceMesh grid = DeviceMesh::make({"a", "b"}, {2, 3});
  check_conversions(line, grid, random_conversions(line, grid, 60));
  check_conversions(grid, line, random_conversions(grid, line, 60));
}

TEST_CASE("a tensor goes to a mesh of other ranks") {
  const DeviceMesh first = DeviceMesh::make({"a", "b"}, {2, 2}, {0, 1, 2, 3});
  const DeviceMesh second = DeviceMesh::make({"c"}, {3}, {3, 5, 4});
  const DeviceMesh corner = DeviceMesh::make({"d"}, {2}, {2, 1});
  on_ranks::run(6, [&] {
    const int rank = current_rank();
    const Tensor whole = on_ranks::numbered({5, 4});
    const SpecHandle spec =
        Spec::make(Layout::make(first, {Shard(0), Partial()}), whole.shape(), DType::f64);
    const Tensor x = first.contains(rank) ? distribute(whole, spec->layout) : Tensor();
    const Layout to = Layout::make(second, {Shard(1)});
    const CommunicationReport report;
    const Tensor y = redistribute_between(x, *spec, to);
    check(static_cast<bool>(y) == second.contains(rank), "only the second mesh has it");
    check(!y || on_ranks::values(y) == on_ranks::part_of(whole, to), "its parts");
    check(report.count("send") == 1, "it was sent");
    if (first.contains(rank)) {
      // To some of the ranks: the others are left with nothing.
      const Tensor z = redistribute(x, Layout::make(corner, {Shard(0)}));
      check(static_cast<bool>(z) == corner.contains(rank), "a part of the mesh");
      check(!z || on_ranks::values(z) == on_ranks::part_of(whole, z.layout()), "its parts");
      check(on_ranks::contains(on_ranks::error_of([&] { redistribute(x, to); }),
                               "rank 5 of mesh(c=3) of ranks 3 5 4 is not in the tensor's"),
            "a mesh with strangers is refused");
      Tensor needy = detached(x);
      needy.set_requires_grad();
      check(on_ranks::contains(on_ranks::error_of([&] { redistribute_between(needy, *spec, to); }),
                               "do not have the same ranks"),
            "a gradient that cannot come back is refused");
    } else {
      check(on_ranks::contains(on_ranks::error_of([&] { redistribute_between(y, *spec, to); }),
                               "rank " + std::to_string(rank) + " gave [5, 4] as"),
            "a tensor of another layout is refused");
    }
  });
}

TEST_CASE("an asynchronous redistribution waits for nobody until it is asked") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {3});
  on_ranks::run(3, [&] {
    const Tensor whole = on_ranks::numbered({7, 2});
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
    check(on_ranks::values(y) == to_doubles(whole), "the value");
    const Tensor g = distribute(whole, Layout::make(mesh, {Shard(1)}));
    backward({&y, 1}, {&g, 1});
    check(on_ranks::values(x.grad()) == on_ranks::part_of(whole, x.layout()), "the gradient");
  });
}

TEST_CASE("a redistribution can be differentiated twice") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
  on_ranks::run(4, [&] {
    // f = sum(r(x)^3), f' = 3x^2, the sum of f' has the gradient 6x.
    const Tensor whole = on_ranks::numbered({5, 3});
    Tensor x = distribute(whole, Layout::make(mesh, {Shard(0), Replicate()}));
    x.set_requires_grad();
    const Tensor y = redistribute(x, Layout::make(mesh, {Shard(1), Shard(0)}));
    const Tensor f = ops::sum(ops::mul(y, ops::square(y)));
    const Tensor none;
    const BackwardOptions options{.create_graph = true};
    const Tensor first = gradients({&f, 1}, {&none, 1}, {&x, 1}, options)[0];
    const Tensor s = ops::sum(first);
    const Tensor second = gradients({&s, 1}, {&none, 1}, {&x, 1})[0];
    const std::vector<double> mine = on_ranks::values(x);
    check(second.layout() == x.layout(), "the layout");
    for (std::size_t i = 0; i < mine.size(); ++i) {
      check(on_ranks::values(first)[i] == 3 * mine[i] * mine[i], "the first derivative");
      check(on_ranks::values(second)[i] == 6 * mine[i], "the second derivative");
    }
  });
}
