// linear with StepContext::feature_blocks: the bits of products of blocks that are added along a
// tree, so those of ranks that have some of the blocks.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

using namespace tessera;

namespace {

Tensor numbers(const Dims& shape, double shift, DType dtype = DType::f32) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::sin(0.7 * static_cast<double>(i) + shift);
  }
  return ops::cast(x, dtype);
}

/// Part `part` of `parts` along a dim, in memory of its own.
Tensor block(const Tensor& x, int dim, std::int64_t part, std::int64_t parts) {
  const std::int64_t length = x.shape()[dim] / parts;
  return ops::clone(ops::contiguous(ops::narrow(x, dim, part * length, length)));
}

/// The sum of terms first to first + count - 1 along a binary tree; count is a power of two.
Tensor tree(const std::function<Tensor(std::int64_t)>& term, std::int64_t first,
            std::int64_t count) {
  return count == 1
             ? term(first)
             : ops::add(tree(term, first, count / 2), tree(term, first + count / 2, count / 2));
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && to_doubles(a) == to_doubles(b);
}

}  // namespace

TEST_CASE("products in blocks have the bits of single blocks, added along a tree") {
  for (const std::int64_t blocks : {2, 4, 8}) {
    INFO(blocks);
    Tensor x = numbers({3, 7, 32}, 0);
    Tensor weight = numbers({48, 32}, 1);
    const Tensor dy = numbers({3, 7, 48}, 2);
    x.set_requires_grad();
    weight.set_requires_grad();
    Tensor y;
    {
      const StepScope scope([&](StepContext& step) { step.feature_blocks = blocks; });
      y = ops::linear(x, weight);
    }
    backward(std::vector<Tensor>{y}, std::vector<Tensor>{dy});
    const NoGrad no_grad;
    for (std::int64_t i = 0; i < blocks; ++i) {
      const Tensor rows = block(weight, 0, i, blocks);
      CHECK(same(block(y, 2, i, blocks), tree(
                                             [&](std::int64_t k) {
                                               return ops::linear(block(x, 2, k, blocks),
                                                                  block(rows, 1, k, blocks));
                                             },
                                             0, blocks)));
      const Tensor columns = block(weight, 1, i, blocks);
      CHECK(same(block(x.grad(), 2, i, blocks), tree(
                                                    [&](std::int64_t k) {
                                                      return ops::linear_grad_input(
                                                          block(dy, 2, k, blocks),
                                                          block(columns, 0, k, blocks));
                                                    },
                                                    0, blocks)));
      for (std::int64_t k = 0; k < blocks; ++k) {
        CHECK(same(block(block(weight.grad(), 0, i, blocks), 1, k, blocks),
                   ops::linear_grad_weight(block(dy, 2, i, blocks), block(x, 2, k, blocks))));
      }
    }
  }
}

TEST_CASE("products in blocks are near to whole ones, with a bias and uneven features") {
  const Tensor x = numbers({5, 24}, 0, DType::f64);
  const Tensor weight = numbers({9, 24}, 1, DType::f64);  // 9 rows are not cut
  const Tensor bias = numbers({9}, 2, DType::f64);
  const std::vector<double> whole = to_doubles(ops::linear(x, weight, bias));
  const StepScope scope([&](StepContext& step) { step.feature_blocks = 4; });
  const std::vector<double> found = to_doubles(ops::linear(x, weight, bias));
  REQUIRE(found.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    CHECK(std::abs(found[i] - whole[i]) <= 1e-12);
  }
}

TEST_CASE("products in blocks refuse 16 bits and numbers that are no powers of two") {
  const auto error_of = [](auto f) {
    try {
      f();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  const StepScope scope([&](StepContext& step) { step.feature_blocks = 2; });
  CHECK(error_of([] {
          static_cast<void>(
              ops::linear(numbers({2, 4}, 0, DType::bf16), numbers({2, 4}, 1, DType::bf16)));
        }).find("16 bits") != std::string::npos);
  CHECK(error_of([] {
          const StepScope three([&](StepContext& step) { step.feature_blocks = 3; });
        }) != "none");
  CHECK(step_context().feature_blocks == 2);
}
