// Tensors that go from one mesh to another one with other ranks, and whose gradients come back. The
// reference is the same computation on plain tensors.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
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

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::contains;
using dtensor_test::error_of;
using dtensor_test::numbered;
using dtensor_test::on_ranks;
using dtensor_test::part_of;
using dtensor_test::values;

namespace {

Tensor small(const Dims& shape, double step) {
  Tensor x = numbered(shape);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::sin(step * (1 + x.data<double>()[i]));
  }
  return x;
}

Tensor weight(const Tensor& whole, const Layout& layout) {
  Tensor w = distribute(whole, layout);
  w.set_requires_grad();
  return w;
}

/// One stage: tanh(x w).
Tensor stage(const Tensor& x, const Tensor& w) { return ops::tanh(ops::matmul(x, w)); }

constexpr int stages = 3;
constexpr std::int64_t rows = 6;

/// The weights' gradients of sum(stages(x)^2) over all micro-batches, on plain tensors.
std::vector<Tensor> expected_gradients(int micro_batches) {
  std::vector<Tensor> w;
  for (int s = 0; s < stages; ++s) {
    w.push_back(small({4, 4}, 0.3 + s).set_requires_grad());
  }
  for (int m = 0; m < micro_batches; ++m) {
    Tensor x = small({rows, 4}, 0.1 * (m + 1));
    for (const Tensor& weights : w) {
      x = stage(x, weights);
    }
    backward(ops::sum(ops::square(x)));
  }
  return {w[0].grad(), w[1].grad(), w[2].grad()};
}

void check_close(const Tensor& got, const Tensor& whole, const std::string& what) {
  const Tensor reduced = redistribute(got, Layout::replicated(got.layout().mesh()));
  const std::vector<double> a = values(reduced);
  const std::vector<double> b = to_doubles(whole);
  check(a.size() == b.size(), what);
  for (std::size_t i = 0; i < a.size(); ++i) {
    check(std::abs(a[i] - b[i]) < 1e-12, what + ": " + std::to_string(a[i]));
  }
}

/// What a rank keeps of a micro-batch until its backward.
struct InFlight {
  std::vector<Tensor> roots;
};

/// A pipeline of three stages on three meshes. A rank can be in several of them. Activations are
/// Partial at the first border and sharded at the second.
struct Pipeline {
  std::vector<DeviceMesh> meshes;
  std::vector<Tensor> weights{Tensor(), Tensor(), Tensor()};

  explicit Pipeline(std::vector<DeviceMesh> of) : meshes(std::move(of)) {
    for (int s = 0; s < stages; ++s) {
      const auto i = static_cast<std::size_t>(s);
      if (meshes[i].contains(current_rank())) {
        weights[i] = weight(small({4, 4}, 0.3 + s), Layout::replicated(meshes[i]));
      }
    }
  }

  Layout input_layout(std::size_t s) const {
    return Layout::make(meshes[s], {s == 1 ? Shard(0) : Replicate()});
  }
  Layout output_layout(std::size_t s) const {
    return Layout::make(meshes[s], {s == 0 ? Shard(0) : s == 1 ? Shard(1) : Replicate()});
  }

  InFlight forward(int micro_batch) const {
    InFlight kept;
    const int me = current_rank();
    Tensor x;
    if (meshes[0].contains(me)) {
      x = distribute(small({rows, 4}, 0.1 * (micro_batch + 1)), input_layout(0));
    }
    for (std::size_t s = 0; s < stages; ++s) {
      if (x) {
        x = stage(x, weights[s]);
      }
      if (s + 1 == stages) {
        if (x) {
          kept.roots.push_back(ops::sum(ops::square(x)));
        }
      } else if (meshes[s].contains(me) || meshes[s + 1].contains(me)) {
        const Layout layout = output_layout(s);
        if (x) {
          x = redistribute(x, layout);
        }
        const SpecHandle spec = Spec::make(layout, {rows, 4}, DType::f64);
        const Crossing crossing = cross_meshes(x, *spec, input_layout(s + 1), true);
        check(static_cast<bool>(crossing.value) != static_cast<bool>(crossing.root),
              "a rank has the value or a root");
        if (crossing.root) {
          kept.roots.push_back(crossing.root);
        }
        x = crossing.value;
      } else {
        x = Tensor();
      }
    }
    return kept;
  }

  static void backward(const InFlight& kept) {
    // The last stage's gradients are needed first.
    for (std::size_t i = kept.roots.size(); i-- > 0;) {
      tessera::backward(kept.roots[i]);
    }
  }

  void check_gradients(const std::vector<Tensor>& expected) const {
    for (std::size_t s = 0; s < stages; ++s) {
      if (weights[s]) {
        check_close(weights[s].grad(), expected[s], "stage " + std::to_string(s));
      }
    }
  }
};

std::vector<DeviceMesh> apart() {
  return {DeviceMesh::make({"a"}, {2}, {0, 1}), DeviceMesh::make({"b"}, {3}, {2, 3, 4}),
          DeviceMesh::make({"c"}, {1}, {5})};
}

/// Rank 1 is in two meshes, rank 3 in two, rank 5 in one only.
std::vector<DeviceMesh> overlapping() {
  return {DeviceMesh::make({"a"}, {2}, {0, 1}), DeviceMesh::make({"b"}, {3}, {3, 1, 2}),
          DeviceMesh::make({"c"}, {2}, {5, 3})};
}

}  // namespace

TEST_CASE("gradients cross between meshes of other ranks") {
  const std::vector<Tensor> expected = expected_gradients(1);
  for (const bool shared : {false, true}) {
    on_ranks(6, [&](int) {
      const Pipeline pipeline(shared ? overlapping() : apart());
      if (shared && current_rank() == 4) {
        return;  // in no mesh
      }
      Pipeline::backward(pipeline.forward(0));
      pipeline.check_gradients(expected);
    });
  }
}

TEST_CASE("stages interleave the forwards and backwards of micro-batches") {
  constexpr int micro_batches = 5;
  const std::vector<Tensor> expected = expected_gradients(micro_batches);
  on_ranks(6, [&](int) {
    const Pipeline pipeline(apart());
    int own_stage = 0;
    while (!pipeline.weights[static_cast<std::size_t>(own_stage)]) {
      ++own_stage;
    }
    // One forward, one backward: the earlier the stage, the more micro-batches are in flight.
    const int warm_up = stages - 1 - own_stage;
    std::vector<InFlight> flying;
    int next_backward = 0;
    for (int m = 0; m < micro_batches + warm_up; ++m) {
      if (m < micro_batches) {
        flying.push_back(pipeline.forward(m));
      }
      if (m >= warm_up) {
        Pipeline::backward(flying[static_cast<std::size_t>(next_backward++)]);
      }
    }
    check(next_backward == micro_batches, "each micro-batch has its backward");
    pipeline.check_gradients(expected);
  });
}

TEST_CASE("a crossing without a gradient has no root, and one in two minds is refused") {
  const DeviceMesh first = DeviceMesh::make({"a"}, {2}, {0, 1});
  const DeviceMesh second = DeviceMesh::make({"b"}, {1}, {2});
  on_ranks(3, [&](int) {
    const Tensor whole = numbered({4, 2});
    const bool sends = first.contains(current_rank());
    const Layout to = Layout::replicated(second);
    const SpecHandle spec = Spec::make(Layout::make(first, {Shard(0)}), {4, 2}, DType::f64);
    Tensor x = sends ? distribute(whole, spec->layout) : Tensor();
    const Crossing plain = cross_meshes(x, *spec, to, false);
    check(!plain.root, "no root");
    check(sends || (values(plain.value) == to_doubles(whole) && !plain.value.requires_grad()),
          "the value alone");
    {
      const NoGrad no_grad;
      const Tensor needy = sends ? detached(x).set_requires_grad() : x;
      const Crossing quiet = cross_meshes(needy, *spec, to, true);
      check(!quiet.root && (sends || !quiet.value.requires_grad()), "nothing is recorded");
    }
    if (sends) {
      check(contains(error_of([&] { cross_meshes(x, *spec, to, true); }),
                     "needs_gradient is true, but the tensor does not need a gradient on rank"),
            "x has no gradient");
      x.set_requires_grad();
      check(contains(error_of([&] { cross_meshes(x, *spec, to, false); }),
                     "needs_gradient is false, but the tensor needs a gradient on rank"),
            "x has a gradient");
    }
    const SpecHandle numbers = Spec::make(spec->layout, {4, 2}, DType::i64);
    check(contains(error_of([&] { cross_meshes(Tensor(), *numbers, to, true); }),
                   "only floating types have gradients (got i64)"),
          "integers have none");
  });
}
