// Accounts: FLOPs and bytes from shapes, of the program as written and of one rank.
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

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::on_ranks;

namespace {

Tensor on_meta(const Dims& shape, DType dtype = DType::f32) { return empty(shape, dtype, meta); }

template <class F>
Account account_of(const F& run) {
  Account account;
  {
    const AccountScope scope(account);
    run();
  }
  return account;
}

template <class F>
double flops_of(const F& run) {
  const Account account = account_of(run);
  CHECK(account.model_flops == account.flops());  // one rank, nothing is computed twice
  return account.model_flops;
}

/// Pairs of a query and a key that it sees, by counting.
double pairs(std::int64_t queries, std::int64_t keys, bool causal) {
  double count = 0;
  for (std::int64_t i = 0; i < queries; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) {
      count += !causal || j <= i + keys - queries ? 1 : 0;
    }
  }
  return count;
}

/// Forward and backward of sum(f(inputs...)).
template <class F>
double trained_flops(const std::vector<Dims>& shapes, const F& f) {
  std::vector<Tensor> inputs;
  for (const Dims& shape : shapes) {
    inputs.push_back(on_meta(shape));
    inputs.back().set_requires_grad();
  }
  return flops_of([&] { backward(ops::sum(f(inputs))); });
}

}  // namespace

TEST_CASE("a product of m x k with k x n is 2 m n k FLOPs, and each of its gradients as many") {
  const auto three = [](double once) { return 3 * once; };
  using Inputs = const std::vector<Tensor>&;
  CHECK(trained_flops({{2, 3}, {3, 5}}, [](Inputs x) { return ops::mm(x[0], x[1]); }) ==
        three(2 * 2 * 3 * 5));
  CHECK(trained_flops({{7, 2, 3}, {7, 3, 5}}, [](Inputs x) { return ops::bmm(x[0], x[1]); }) ==
        three(7 * 2 * 2 * 3 * 5));
  CHECK(trained_flops({{5}, {2, 3}, {3, 5}}, [](Inputs x) {
          return ops::addmm(x[0], x[1], x[2]);
        }) == three(2 * 2 * 3 * 5));
  CHECK(trained_flops({{4, 1, 2, 3}, {7, 3, 5}}, [](Inputs x) {
          return ops::matmul(x[0], x[1]);
        }) == three(4 * 7 * 2 * 2 * 3 * 5));
  CHECK(trained_flops({{6, 2, 3}, {5, 3}, {5}}, [](Inputs x) {
          return ops::linear(x[0], x[1], x[2]);
        }) == three(6 * 2 * 2 * 3 * 5));
  CHECK(flops_of([] { ops::mv(on_meta({4, 3}), on_meta({3})); }) == 2 * 4 * 3);
  CHECK(flops_of([] { ops::dot(on_meta({9}), on_meta({9})); }) == 2 * 9);
  // Each of 2 x 8 x 5 x 4 results has a kernel of 3 x 2 x 2 (4 groups of 3 channels).
  CHECK(trained_flops({{2, 12, 6, 5}, {8, 3, 2, 2}}, [](Inputs x) {
          return ops::conv2d(x[0], x[1], {}, {.groups = 4});
        }) == three(2.0 * (2 * 8 * 5 * 4) * (3 * 2 * 2)));
  CHECK(flops_of([] { ops::add(on_meta({4}), on_meta({4})); }) == 0);
}

TEST_CASE("attention counts the pairs that it looks at: two products forward, four backward") {
  using Inputs = const std::vector<Tensor>&;
  constexpr double heads = 2 * 6;  // batch and query heads
  CHECK(trained_flops({{2, 5, 6, 8}, {2, 9, 3, 8}, {2, 9, 3, 8}}, [](Inputs x) {
          return ops::causal_attention(x[0], x[1], x[2]);
        }) == 6 * 2 * heads * 8 * pairs(5, 9, true));
  CHECK(trained_flops({{2, 6, 5, 8}, {2, 3, 9, 8}, {2, 3, 9, 8}}, [](Inputs x) {
          return ops::scaled_dot_product_attention(x[0], x[1], x[2]);
        }) == 6 * 2 * heads * 8 * pairs(5, 9, false));
  const auto seen = [&](std::int64_t keys, ops::Causal causal) {
    return trained_flops({{2, 6, 5, 8}, {2, 3, keys, 8}, {2, 3, keys, 8}},
                         [&](Inputs x) {
                           return ops::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0,
                                                                    causal);
                         }) /
           (6 * 2 * heads * 8);
  };
  CHECK(seen(9, ops::Causal::lower_right) == 5 + 6 + 7 + 8 + 9);
  CHECK(seen(9, ops::Causal::upper_left) == 1 + 2 + 3 + 4 + 5);
  CHECK(seen(3, ops::Causal::lower_right) == 0 + 0 + 1 + 2 + 3);
  CHECK(seen(3, ops::Causal::upper_left) == 1 + 2 + 3 + 3 + 3);
}

TEST_CASE("bytes are those of the elements that are read and written") {
  const Account account = account_of([] {
    const Tensor x = on_meta({4, 6});
    const Tensor row = ops::expand(on_meta({6}), {4, 6});
    ops::add(x, ops::transpose(ops::transpose(x, 0, 1), 0, 1));
    ops::mul(x, row);
  });
  CHECK(account.operators.at("add").bytes == 3 * 24 * 4);
  CHECK(account.operators.at("mul").bytes == 2 * 24 * 4 + 6 * 4);
  CHECK(account.operators.at("transpose").bytes == 0);
  CHECK(account.operators.at("transpose").calls == 2);
  CHECK(account.bytes() == 3 * 24 * 4 + 2 * 24 * 4 + 6 * 4);
}

TEST_CASE("recomputation counts for the rank, not for the model") {
  const Tensor weight = on_meta({3, 3});
  Tensor x = on_meta({2, 3});
  x.set_requires_grad();
  const auto layer = [&](std::span<const Tensor> in) { return Tensors{ops::mm(in[0], weight)}; };
  const Tensor inputs[] = {x};
  const Account account = account_of([&] { backward(ops::sum(checkpoint(layer, inputs)[0])); });
  constexpr double once = 2 * 2 * 3 * 3;
  CHECK(account.model_flops == 2 * once);  // forward, and the gradient of x
  CHECK(account.flops() == 3 * once);
}

TEST_CASE("the model's FLOPs are of global shapes, a rank's of its own; communication by axis") {
  on_ranks(2, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
    const Tensor a = distributed_zeros({5, 4}, Layout::make(mesh, {Shard(0)}));
    const Tensor b = distributed_zeros({4, 3}, Layout::replicated(mesh));
    Account account;
    {
      const AccountScope scope(account);
      redistribute(ops::mm(a, b), Layout::replicated(mesh));
    }
    const double rows = current_rank() == 0 ? 3 : 2;
    check(account.model_flops == 2 * 5 * 4 * 3, "global shapes");
    check(account.flops() == 2 * rows * 4 * 3, "local shapes");
    const CollectiveWork& gather = account.collectives.at({"shard", "all_gather"});
    check(gather.calls == 1, "one gather");
    const std::string text = account.to_string();
    check(text.find("all_gather on 'shard'") != std::string::npos, text);
    check(text.find("mm ") != std::string::npos, text);
  });
}

TEST_CASE("an account ends with its scope, also when the scope ends with an error") {
  Account account;
  try {
    const AccountScope scope(account);
    ops::mm(on_meta({2, 3}), on_meta({3, 4}));
    ops::mm(on_meta({2, 3}), on_meta({2, 3}));
  } catch (const Error&) {
    CHECK(account.model_flops == 2 * 2 * 3 * 4);
  }
  ops::mm(on_meta({2, 3}), on_meta({3, 4}));
  CHECK(account.operators.at("mm").calls == 1);
  CHECK_FALSE(modes_installed());
  Account twice;
  twice.add(account, 3);
  twice.add(account, -1);
  CHECK(twice.operators.at("mm").calls == 2);
  CHECK(twice.model_flops == 2 * account.model_flops);
}
