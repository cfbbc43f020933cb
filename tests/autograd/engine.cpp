// A pass of backward: hooks, callbacks at its end, what is saved and when it is freed.
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
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

/// y = 2 x, as a recorded function that holds `token`.
Tensor doubled(const Tensor& x, std::shared_ptr<int> token = nullptr) {
  const NoGrad constant;
  const Tensor y = ops::mul_scalar(x, 2);
  const NoGrad recording(true);
  record_function("doubled", {&x, 1}, {&y, 1},
                  [token = std::move(token)](std::span<const Tensor> grads, std::span<Tensor> out) {
                    out[0] = ops::mul_scalar(grads[0], 2);
                  });
  return y;
}

}  // namespace

TEST_CASE("hooks run once in a pass, on the whole gradient, and replace it") {
  const Tensor x = leaf({3}, 1);
  const Tensor y = ops::mul_scalar(x, 2);
  int leaf_calls = 0;
  int calls = 0;
  int accumulated = 0;
  add_gradient_hook(x, [&](const Tensor& g) {
    ++leaf_calls;
    CHECK(to_doubles(g) == repeated(3, 110));  // both paths: 2 (1 + 10) 5
    return ops::mul_scalar(g, 3);
  });
  add_gradient_hook(y, [&](const Tensor& g) {
    ++calls;
    CHECK(to_doubles(g) == repeated(3, 11));
    return ops::mul_scalar(g, 5);
  });
  add_post_accumulate_hook(x, [&](Tensor& same) {
    ++accumulated;
    CHECK(to_doubles(same.grad()) == repeated(3, 330));
  });
  const Tensor loss = ops::sum(ops::add(y, ops::mul_scalar(y, 10)));
  backward(loss, {.retain_graph = true});
  CHECK(leaf_calls == 1);
  CHECK(calls == 1);
  CHECK(accumulated == 1);

  const Tensor none;
  const Tensor requested = gradients({&loss, 1}, {&none, 1}, {&x, 1})[0];
  CHECK(to_doubles(requested) == repeated(3, 330));
  CHECK(leaf_calls == 2);
  CHECK(calls == 2);
  CHECK(accumulated == 1);  // no grad() was touched
  CHECK(to_doubles(x.grad()) == repeated(3, 330));
}

TEST_CASE("a hook or function that writes the gradient it is given is refused") {
  const Tensor a = leaf({2}, 1);
  const Tensor b = leaf({2}, 1);
  const Tensor y = ops::add(a, b);
  add_gradient_hook(a, [](const Tensor& g) {
    ops::mul_(g, full({}, 10, DType::f64));
    return Tensor();
  });
  const Tensor root = full({2}, 1, DType::f64);
  CHECK(contains(error_of([&] { backward({&y, 1}, {&root, 1}); }), "wrote the gradient in place"));

  const Tensor x = leaf({2}, 1);
  const Tensor z = detached(x);
  record_function("writer", {&x, 1}, {&z, 1},
                  [](std::span<const Tensor> grads, std::span<Tensor> out) {
                    out[0] = ops::fill_(grads[0], 3);
                  });
  CHECK(contains(error_of([&] { backward({&z, 1}, {&root, 1}); }),
                 "'writer' wrote a gradient that it was given"));
}

TEST_CASE("callbacks run at the end of a pass that succeeds, and not after one that failed") {
  const Tensor x = leaf({2}, 1);
  std::vector<int> ran;
  bool fails = true;
  add_gradient_hook(x, [&](const Tensor&) -> Tensor {
    CHECK(in_backward());
    queue_final_callback([&] {
      ran.push_back(1);
      queue_final_callback([&] { ran.push_back(2); });
    });
    CHECK(ran.empty());
    if (fails) {
      fail("the hook fails");
    }
    return {};
  });
  CHECK_THROWS(backward(ops::sum(x)));
  CHECK_FALSE(in_backward());
  CHECK(ran.empty());
  backward(ops::sum(leaf({2}, 1)));  // another graph: nothing is left over
  CHECK(ran.empty());
  fails = false;
  backward(ops::sum(x));
  CHECK(ran == std::vector<int>{1, 2});
  queue_final_callback([&] { ran.push_back(3); });  // outside of a pass: at once
  CHECK(ran == std::vector<int>{1, 2, 3});
}

TEST_CASE("backward frees what was saved, and a second backward names the step") {
  const Tensor x = leaf({2}, 1);
  auto token = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = token;
  const Tensor y = doubled(x, std::move(token));
  const Tensor loss = ops::sum(y);
  backward(loss, {.retain_graph = true});
  CHECK_FALSE(watch.expired());
  backward(loss);
  CHECK(watch.expired());
  CHECK(to_doubles(x.grad()) == repeated(2, 4));
  CHECK(contains(error_of([&] { backward(loss); }), "the graph of 'sum' was freed"));
  const Tensor root = full({2}, 1, DType::f64);
  CHECK(contains(error_of([&] { backward({&y, 1}, {&root, 1}); }),
                 "the graph of 'doubled' was freed"));
}

TEST_CASE("memory of saved tensors is returned by backward, though the loss lives on") {
  const Tensor x = leaf({1000}, 1);
  const auto in_use = [] { return memory_statistics().total; };
  const std::int64_t before = in_use();
  const Tensor loss = ops::sum(ops::exp(ops::exp(ops::exp(x))));
  CHECK(in_use() >= before + 2 * 8000);
  backward(loss);
  x.grad() = Tensor();
  CHECK(in_use() < before + 1000);
}

TEST_CASE("a saved tensor carries the version of its memory") {
  const Tensor x = leaf({2}, 3);
  const SavedTensor saved(x);
  CHECK(saved.get("me").same_as(x));
  CHECK_FALSE(SavedTensor().get("me").defined());
  ops::fill_(detached(x), 1);
  CHECK(contains(error_of([&] { saved.get("me"); }),
                 "a tensor that 'me' needs was changed in place after it was used ([2])"));
  const Tensor released = zeros({2});
  const SavedTensor of_released(released);
  released.storage().release_memory();
  CHECK(contains(error_of([&] { of_released.get("me"); }), "was released"));
  CHECK(of_released.get_unfilled("me").same_as(released));
  released.storage().restore_memory();
}

TEST_CASE("undefined tensors are refused by name") {
  const Tensor none;
  const Tensor x = leaf({1}, 1);
  CHECK(contains(error_of([&] { backward(none); }), "backward: a root is undefined"));
  CHECK(contains(error_of([&] { gradients({&x, 1}, {&none, 1}, {&none, 1}); }),
                 "gradients: a tensor whose gradient is requested is undefined"));
  CHECK(contains(error_of([&] { add_gradient_hook(none, {}); }), "add_gradient_hook: "));
  CHECK(contains(error_of([&] { add_post_accumulate_hook(none, {}); }),
                 "add_post_accumulate_hook: "));
}

TEST_CASE("a leaf that took part in a graph can be frozen, and changed back") {
  const Tensor a = leaf({2}, 3);
  const Tensor b = leaf({2}, 5);
  const auto product = [&] { return ops::sum(ops::mul(a, b)); };
  int hooks = 0;
  int accumulated = 0;
  add_gradient_hook(a, [&](const Tensor&) {
    ++hooks;
    return Tensor();
  });
  add_post_accumulate_hook(a, [&](Tensor&) { ++accumulated; });
  backward(product());
  CHECK(to_doubles(a.grad()) == repeated(2, 5));
  CHECK((hooks == 1 && accumulated == 1));

  const Tensor before = product();  // recorded while the leaf needs a gradient
  Tensor frozen = a;
  frozen.set_requires_grad(false);
  CHECK(!a.requires_grad());
  backward(before, {.retain_graph = true});
  CHECK(to_doubles(a.grad()) == repeated(2, 5));  // the gradient of the step before
  CHECK(to_doubles(b.grad()) == repeated(2, 6));
  backward(product());
  CHECK(to_doubles(a.grad()) == repeated(2, 5));
  CHECK(to_doubles(b.grad()) == repeated(2, 9));
  CHECK((hooks == 1 && accumulated == 1));
  const Tensor none;
  CHECK(!gradients({&before, 1}, {&none, 1}, {&a, 1}, {.retain_graph = true})[0]);
  CHECK(!ops::mul(a, a).requires_grad());

  frozen.set_requires_grad();
  backward(before);
  CHECK(to_doubles(a.grad()) == repeated(2, 10));
  CHECK((hooks == 2 && accumulated == 2));

  const Tensor y = ops::mul(a, b);
  Tensor computed = y;
  CHECK(contains(error_of([&] { computed.set_requires_grad(false); }),
                 "set_requires_grad: the tensor was computed from others (expected a leaf)"));
  CHECK(y.requires_grad());
}

TEST_CASE("a leaf that a checkpoint captured can be frozen before its backward") {
  const Tensor x = leaf({2}, 3);
  Tensor weight = leaf({2}, 5);
  const Tensor y = checkpoint(
      [weight](std::span<const Tensor> inputs) { return Tensors{ops::mul(inputs[0], weight)}; },
      {&x, 1})[0];
  weight.set_requires_grad(false);
  backward(ops::sum(y));
  CHECK(to_doubles(x.grad()) == repeated(2, 5));
  CHECK(!weight.grad());
}
