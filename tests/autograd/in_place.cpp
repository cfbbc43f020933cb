// In-place forms of operators while gradients are recorded: the written tensor continues its
// history where that is certain, and everything else is refused before anything is written.
#include <span>
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

using Doubles = std::vector<double>;

}  // namespace

TEST_CASE("a tensor that is written in place continues its history") {
  const Tensor x = leaf_of({1, 2, 3}, {3});
  const Tensor w = leaf_of({4, 5, 6}, {3});
  const Tensor h = ops::mul_scalar(x, 2);
  CHECK(ops::mul_(h, w).same_as(h));  // 2 x w
  ops::add_scalar_(h, 1);
  ops::mul_scalar_(h, 10);
  CHECK(to_doubles(h) == Doubles{90, 210, 370});
  backward(ops::sum(h));
  CHECK(to_doubles(x.grad()) == Doubles{80, 100, 120});  // 10 * 2 w
  CHECK(to_doubles(w.grad()) == Doubles{20, 40, 60});    // 10 * 2 x
}

TEST_CASE("a tensor that needs no gradient collects terms that do") {
  const Tensor x = leaf_of({1, 2}, {2});
  const Tensor total = zeros({2}, DType::f64);
  for (int i = 1; i <= 3; ++i) {
    ops::add_(total, ops::pow_scalar(x, i));
  }
  CHECK(total.requires_grad());
  backward(ops::sum(total));
  CHECK(to_doubles(x.grad()) == Doubles{6, 17});  // 1 + 2 x + 3 x^2
}

TEST_CASE("a tensor multiplied by itself in place has both gradients") {
  const Tensor x = leaf_of({1, 2, -3}, {3});
  const Tensor h = ops::mul_scalar(x, 2);
  ops::mul_(h, h);
  CHECK(to_doubles(h) == Doubles{4, 16, 36});
  backward(ops::sum(h));
  CHECK(to_doubles(x.grad()) == Doubles{8, 16, -24});  // 8 x
}

TEST_CASE("what is written in place is differentiated twice") {
  const Tensor x = leaf_of({1, 2}, {2});
  const Tensor h = ops::mul_scalar(x, 1);
  ops::pow_scalar_(h, 3);
  const Tensor y = ops::sum(h);
  const Tensor none;
  const Tensor first = gradients({&y, 1}, {&none, 1}, {&x, 1}, {.create_graph = true})[0];
  CHECK(to_doubles(first) == Doubles{3, 12});
  const Tensor total = ops::sum(first);
  CHECK(to_doubles(gradients({&total, 1}, {&none, 1}, {&x, 1})[0]) == Doubles{6, 12});
}

TEST_CASE("a write in place that gradients cannot follow is refused and changes nothing") {
  const Tensor x = leaf_of({1, 2}, {2});
  const auto refused = [](const char* why, const Tensor& written, auto write) {
    const Doubles before = to_doubles(written);
    const std::string error = error_of(write);
    INFO(error);
    CHECK(contains(error, why));
    CHECK(contains(error, "while gradients are recorded"));
    CHECK(to_doubles(written) == before);
  };
  refused("mul_scalar_: operand 'x' cannot be written", x, [&] { ops::mul_scalar_(x, 2); });
  refused("a leaf that requires a gradient", x, [&] { ops::add_(x, x); });

  const Tensor h = ops::mul_scalar(x, 3);
  {
    const Tensor view = ops::narrow(h, 0, 0, 1);
    refused("other tensors share its memory", h, [&] { ops::mul_scalar_(h, 2); });
    refused("other tensors share its memory", h, [&] { ops::mul_scalar_(view, 2); });
  }
  const Tensor kept = ops::softmax(h, 0);  // which keeps its result for backward
  refused("other tensors share its memory", kept, [&] { ops::mul_scalar_(kept, 2); });

  std::vector<float> memory(2, 1);
  const Tensor borrowed = from_memory(memory.data(), {2}, DType::f32);
  const Tensor g = leaf({2}, 1);
  refused("other tensors share its memory", borrowed,
          [&] { ops::add_(borrowed, ops::cast(g, DType::f32)); });

  refused("this operator has no gradient", h, [&] { ops::fill_(h, 1); });
  const Tensor other = zeros({2}, DType::f64);
  refused("this operator has no gradient", other,
          [&] { ops::call_into(other, find_op("neg"), {x}, {}); });
}

TEST_CASE("a step that needs what was overwritten says so") {
  const Tensor x = leaf_of({1, 2}, {2});
  const Tensor h = ops::mul_scalar(x, 3);
  const Tensor y = ops::square(h);  // keeps h
  ops::mul_scalar_(h, 2);
  CHECK(contains(error_of([&] { backward(ops::sum(y)); }), "was changed in place"));
}

TEST_CASE("without recording, a write in place leaves history alone") {
  const Tensor x = leaf_of({1, 2}, {2});
  {
    const NoGrad unrecorded;
    ops::mul_scalar_(x, 5);
  }
  CHECK(is_leaf(x));
  CHECK(to_doubles(x) == Doubles{5, 10});
}

TEST_CASE("a checkpointed function writes its own tensors in place") {
  const Tensor x = leaf_of({1, 2}, {2});
  const Tensor w = leaf_of({3, 4}, {2});
  const auto f = [&](std::span<const Tensor> in) {
    const Tensor h = ops::mul_scalar(in[0], 2);
    ops::mul_(h, w);
    ops::add_scalar_(h, 1);
    return Tensors{h};
  };
  const Tensor y = checkpoint(f, {&x, 1})[0];
  CHECK(to_doubles(y) == Doubles{7, 17});
  backward(ops::sum(y));
  CHECK(to_doubles(x.grad()) == Doubles{6, 8});
  CHECK(to_doubles(w.grad()) == Doubles{2, 4});

  const Tensor outside = ops::mul_scalar(w, 2);
  const auto writes_outside = [&](std::span<const Tensor> in) {
    return Tensors{ops::mul_(outside, in[0])};
  };
  CHECK(contains(error_of([&] { checkpoint(writes_outside, {&x, 1}); }),
                 "from outside of a checkpointed function"));
}
