// Activation checkpoints: what is computed again gets the gradients that it would have got.
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

#include "support.hpp"

using namespace tessera;
using namespace on_graph;

namespace {

const Tensor none;

/// x -> tanh(x w), with w from outside.
CheckpointedFunction layer(const Tensor& w) {
  return [w](std::span<const Tensor> in) { return Tensors{ops::tanh(ops::mul(in[0], w))}; };
}

/// Sums of tanh(w tanh(w x)), with and without checkpoints.
Tensor two_layers(const Tensor& x, const Tensor& w, bool checkpointed) {
  Tensor h = x;
  for (int i = 0; i < 2; ++i) {
    h = checkpointed ? checkpoint(layer(w), {&h, 1})[0] : layer(w)({&h, 1})[0];
  }
  return ops::sum(h);
}

}  // namespace

TEST_CASE("gradients() reaches what a checkpoint captures, and touches no grad()") {
  const Tensor x = leaf_of({0.5, -1, 2}, {3});
  const Tensor w = leaf_of({1, 2, -0.5}, {3});
  const std::vector<Tensor> wanted = {x, w};
  const Tensor plain = two_layers(x, w, false);
  const std::vector<Tensor> expected = gradients({&plain, 1}, {&none, 1}, wanted);
  const Tensor again = two_layers(x, w, true);
  const std::vector<Tensor> found = gradients({&again, 1}, {&none, 1}, wanted);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    REQUIRE(found[i].defined());
    CHECK(to_doubles(found[i]) == to_doubles(expected[i]));
    CHECK_FALSE(wanted[i].grad().defined());
  }
}

TEST_CASE("hooks of a captured leaf run once, on the whole gradient") {
  const Tensor x = leaf({3}, 0.5);
  const Tensor w = leaf({3}, 2);
  const Tensor plain = two_layers(x, w, false);
  const std::vector<double> whole = to_doubles(gradients({&plain, 1}, {&none, 1}, {&w, 1})[0]);
  int hooked = 0;
  int accumulated = 0;
  add_gradient_hook(w, [&](const Tensor& g) {
    ++hooked;
    CHECK(to_doubles(g) == whole);
    return Tensor();
  });
  add_post_accumulate_hook(w, [&](Tensor&) { ++accumulated; });
  backward(two_layers(x, w, true));
  CHECK(hooked == 1);
  CHECK(accumulated == 1);
  CHECK(to_doubles(w.grad()) == whole);
}

TEST_CASE(
    "a captured tensor that was computed passes its gradient on, and its graph is used once") {
  const Tensor a = leaf({3}, 0.5);
  const Tensor x = leaf({3}, 2);
  const auto loss = [&](bool checkpointed) {
    const Tensor w = ops::exp(a);
    const Tensor h = checkpointed ? checkpoint(layer(w), {&x, 1})[0] : layer(w)({&x, 1})[0];
    return ops::sum(ops::mul(h, w));
  };
  backward(loss(false));
  const std::vector<double> expected = to_doubles(a.grad());
  a.grad() = Tensor();
  backward(loss(true));
  CHECK(to_doubles(a.grad()) == expected);
}

TEST_CASE("checkpoints in checkpoints, and results that are what was given") {
  const Tensor x = leaf({3}, 0.5);
  const Tensor w = leaf({3}, 2);
  backward(two_layers(x, w, false));
  const std::vector<double> of_x = to_doubles(x.grad());
  const std::vector<double> of_w = to_doubles(w.grad());
  x.grad() = w.grad() = Tensor();
  const CheckpointedFunction outer = [&](std::span<const Tensor> in) {
    const Tensor h = checkpoint(layer(w), in)[0];
    return checkpoint(layer(w), {&h, 1});
  };
  backward(ops::sum(checkpoint(outer, {&x, 1})[0]));
  CHECK(to_doubles(x.grad()) == of_x);
  CHECK(to_doubles(w.grad()) == of_w);

  x.grad() = w.grad() = Tensor();
  const Tensors same =
      checkpoint([&](std::span<const Tensor> in) { return Tensors{in[0], w}; }, {&x, 1});
  backward(ops::sum(ops::add(same[0], ops::mul_scalar(same[1], 3))));
  CHECK(to_doubles(x.grad()) == repeated(3, 1));
  CHECK(to_doubles(w.grad()) == repeated(3, 3));
  ops::fill_(x.grad(), 0);
  CHECK(to_doubles(w.grad()) == repeated(3, 3));
}

TEST_CASE("nothing is recorded where nothing needs a gradient") {
  const Tensor x = full({3}, 0.5, DType::f64);
  CHECK_FALSE(checkpoint(layer(x), {&x, 1})[0].requires_grad());
  const NoGrad constant;
  const Tensor w = leaf({3}, 2);
  CHECK_FALSE(checkpoint(layer(w), {&x, 1})[0].requires_grad());
}

TEST_CASE("what a checkpoint needs again must not be written before") {
  const std::string written = "a tensor that 'checkpoint' needs was changed in place";
  const Tensor w = leaf({3}, 2);
  const Tensor x = leaf({3}, 0.5);
  const Tensor h = ops::mul_scalar(x, 1);
  const Tensor first = ops::sum(checkpoint(layer(w), {&h, 1})[0]);
  ops::fill_(detached(h), 7);
  CHECK(contains(error_of([&] { backward(first); }), written));

  const Tensor second = ops::sum(checkpoint(layer(w), {&x, 1})[0]);
  ops::fill_(detached(w), 7);
  CHECK(contains(error_of([&] { backward(second); }), written));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("a function that does not do the same again is refused") {
  const Tensor x = leaf({3}, 0.5);
  const Tensor w = leaf({3}, 2);
  const Tensor v = leaf({3}, 3);
  const auto run = [&](const CheckpointedFunction& f) {
    return error_of([&] { backward(ops::sum(checkpoint(f, {&x, 1})[0])); });
  };
  const Tensor computed = ops::exp(v);
  for (const Tensor& other : {v, computed}) {
    CHECK(contains(
        run([&](std::span<const Tensor> in) { return layer(in_backward() ? other : w)(in); }),
        "checkpoint: when the function was called again for backward, it used a tensor"));
  }
  CHECK(contains(run([&](std::span<const Tensor> in) {
                   Tensors out = layer(w)(in);
                   if (in_backward()) {
                     out.push_back(out[0]);
                   }
                   return out;
                 }),
                 "(expected 1, got 2)"));
  CHECK_FALSE(v.grad().defined());
  CHECK(contains(error_of([&] {
                   backward(ops::sum(checkpoint(layer(w), {&x, 1})[0]), {.create_graph = true});
                 }),
                 "checkpoint: its gradient cannot be differentiated again"));
}

TEST_CASE("a checkpoint's second call draws the same random numbers") {
  const Tensor x = leaf({1000}, 1);
  set_seed(3);
  const Tensor y = checkpoint(
      [](std::span<const Tensor> in) { return Tensors{ops::dropout(in[0], 0.5, random_stream())}; },
      {&x, 1})[0];
  const std::vector<double> kept = to_doubles(y);
  const Tensor next = ops::dropout(detached(x), 0.5, random_stream());
  backward(ops::sum(y));
  CHECK(to_doubles(x.grad()) == kept);
  CHECK(to_doubles(next) != kept);
}
