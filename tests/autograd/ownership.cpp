// Every gradient that leaves backward has dense memory of its own.
#include <cmath>
#include <span>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

#include "support.hpp"

using namespace tessera;
using namespace on_graph;

namespace {

/// Both leaves' gradients are the result's own: one tensor, as far as the formula goes.
struct Sum {
  Tensor a = leaf({2, 3}, 1);
  Tensor b = leaf({2, 3}, 2);
  Tensor y = ops::add(a, b);
};

bool is_owned(const Tensor& gradient) {
  const Tensor& local = local_of(gradient);
  return local.is_contiguous() && !repeats_elements(gradient);
}

}  // namespace

TEST_CASE("two leaves that get one gradient get one tensor each") {
  Sum s;
  backward(ops::sum(s.y));
  ops::mul_(s.a.grad(), full({}, 10, DType::f64));
  CHECK(to_doubles(s.a.grad()) == repeated(6, 10));
  CHECK(to_doubles(s.b.grad()) == repeated(6, 1));
  CHECK(is_owned(s.a.grad()));
  CHECK(is_owned(s.b.grad()));
}

TEST_CASE("a root's gradient stays the caller's") {
  const Sum s;
  const Tensor root = full({2, 3}, 4, DType::f64);
  backward({&s.y, 1}, {&root, 1});
  ops::fill_(s.a.grad(), 0);
  ops::fill_(s.b.grad(), 1);
  CHECK(to_doubles(root) == repeated(6, 4));
  ops::fill_(root, 7);
  CHECK(to_doubles(s.a.grad()) == repeated(6, 0));

  const Tensor leaf_root = leaf({3}, 1);
  const Tensor of_leaf = full({3}, 5, DType::f64);
  backward({&leaf_root, 1}, {&of_leaf, 1});
  ops::fill_(leaf_root.grad(), 0);
  CHECK(to_doubles(of_leaf) == repeated(3, 5));
}

TEST_CASE("the gradient of a sum can be written element by element") {
  const Tensor x = leaf_of({1, 2, 3, 4}, {4});
  backward(ops::sum(x));
  CHECK(is_owned(x.grad()));
  ops::mul_(x.grad(), from_values<double>({1, 2, 3, 4}, {4}));
  CHECK(to_doubles(x.grad()) == std::vector<double>{1, 2, 3, 4});
}

TEST_CASE("clipping in place, over lists, gives the norm that was asked for") {
  const Sum s;
  const Tensor c = leaf({5}, 2);
  backward(ops::add(ops::sum(s.y), ops::sum(c)));
  const std::vector<Tensor> gradients = {s.a.grad(), s.b.grad(), c.grad()};
  const auto norm = [&] {
    double square = 0;
    for (const Tensor& g : gradients) {
      for (const double value : to_doubles(g)) {
        square += value * value;
      }
    }
    return std::sqrt(square);
  };
  ops::foreach_mul_(gradients, 1.0 / norm());
  CHECK(norm() == Approx(1.0).epsilon(1e-12));
}

TEST_CASE("a gradient that nothing else holds is taken over, not copied") {
  const Tensor x = leaf({4}, 2);
  const void* memory = nullptr;
  const Tensor y = ops::mul(x, full({4}, 3, DType::f64));
  add_gradient_hook(x, [&](const Tensor& g) {
    memory = g.raw_data();
    return Tensor();
  });
  backward(ops::sum(y));
  CHECK(x.grad().raw_data() == memory);
}

TEST_CASE("what hooks return or keep shares no memory with a leaf's gradient") {
  Sum s;
  Tensor held = full({2, 3}, 8, DType::f64);
  Tensor kept;
  add_gradient_hook(s.a, [&](const Tensor&) { return held; });
  add_gradient_hook(s.b, [&](const Tensor& g) {
    kept = g;
    return Tensor();
  });
  backward(ops::sum(s.y));
  ops::fill_(s.a.grad(), 0);
  ops::fill_(s.b.grad(), 0);
  CHECK(to_doubles(held) == repeated(6, 8));
  CHECK(to_doubles(kept) == repeated(6, 1));

  Tensor accumulated;
  add_post_accumulate_hook(s.b, [&](Tensor& x) { accumulated = x.grad(); });
  for (int i = 0; i < 2; ++i) {
    backward(ops::sum(ops::add(s.b, s.b)));
  }
  CHECK(to_doubles(s.b.grad()) == repeated(6, 4));
  const Tensor first = accumulated;
  backward(ops::sum(s.b));
  CHECK(to_doubles(first) == repeated(6, 4));  // not added to
  CHECK(to_doubles(s.b.grad()) == repeated(6, 5));
}

TEST_CASE("memory that is not the allocator's is copied: others may have it") {
  const Tensor x = leaf({3}, 1);
  std::vector<double> memory = {1, 2, 3};
  add_gradient_hook(x, [&](const Tensor&) { return from_memory(memory.data(), {3}, DType::f64); });
  backward(ops::sum(x));
  ops::fill_(x.grad(), 0);
  CHECK(memory == std::vector<double>{1, 2, 3});
}

TEST_CASE("requested gradients share nothing, also where two of them are one value") {
  const Sum s;
  const Tensor root = full({2, 3}, 4, DType::f64);
  const std::vector<Tensor> wanted = {s.a, s.b, s.y, s.a};
  for (const bool create_graph : {false, true}) {
    const std::vector<Tensor> found = gradients(
        {&s.y, 1}, {&root, 1}, wanted, {.retain_graph = true, .create_graph = create_graph});
    for (std::size_t i = 0; i < found.size(); ++i) {
      REQUIRE(is_owned(found[i]));
      ops::fill_(detached(found[i]), static_cast<double>(i));
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(to_doubles(found[i]) == repeated(6, static_cast<double>(i)));
    }
    CHECK(to_doubles(root) == repeated(6, 4));
  }
  CHECK_FALSE(s.a.grad().defined());
}

TEST_CASE("a gradient that was set by hand is left alone") {
  Sum s;
  const Tensor mine = full({2, 3}, 1, DType::f64);
  s.a.grad() = mine;
  s.b.grad() = mine;
  backward(ops::sum(s.y));
  CHECK(to_doubles(mine) == repeated(6, 1));
  CHECK(to_doubles(s.a.grad()) == repeated(6, 2));
  CHECK(to_doubles(s.b.grad()) == repeated(6, 2));
  s.a.grad() = full({3}, 1, DType::f64);
  CHECK(contains(error_of([&] { backward(ops::sum(s.a)); }),
                 "different shapes ([3] and [2, 3]); was a grad() set by hand?"));
}

TEST_CASE("of distributed leaves it is the local memory that is owned") {
  set_current_rank(0);
  const DeviceMesh mesh = DeviceMesh::make({"data"}, {1});
  const auto place = [&](double value, Placement placement) {
    return from_local(full({2, 3}, value, DType::f64), Layout::make(mesh, {placement}))
        .set_requires_grad();
  };
  const Tensor a = place(1, Shard(0));
  const Tensor b = place(2, Replicate());
  backward(ops::sum(ops::add(a, b)));
  CHECK(is_owned(a.grad()));
  CHECK(is_owned(b.grad()));
  ops::fill_(a.grad(), 9);
  CHECK(to_doubles(b.grad().local()) == repeated(6, 1));
}
