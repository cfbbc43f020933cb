// The layers against closed forms and finite differences.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;

using namespace tessera;

namespace {

using Values = std::vector<double>;

constexpr double tolerance = 1e-12;

/// Values from -1.5 to 1.5, no two alike.
Tensor pattern(const Dims& shape, double phase) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = 1.5 * std::sin(1.3 * static_cast<double>(i) + phase);
  }
  return x;
}

void fill(nn::Module& module) {
  nn::materialize(module);
  const NoGrad no_grad;
  double phase = 0.2;
  for (const nn::ParameterPointer& p : nn::all_parameters(module)) {
    ops::copy_(p->value, pattern(p->value.shape(), phase += 0.7));
  }
}

double largest(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return difference;
}

/// Compares the gradients of sum(weights * f(x)) for x and all parameters with central differences.
void check_gradients(nn::Module& module, const std::function<Tensor(const Tensor&)>& f,
                     const Tensor& x) {
  Tensor leaf = ops::mul_scalar(x, 1);
  leaf.set_requires_grad();
  const auto value = [&] {
    const Tensor y = f(leaf);
    return ops::sum(ops::mul(y, pattern(y.shape(), 0.4)));
  };
  backward(value());
  std::vector<Tensor> leaves = {leaf};
  for (const nn::ParameterPointer& p : nn::all_parameters(module)) {
    leaves.push_back(p->value);
  }
  const NoGrad no_grad;
  constexpr double step = 1e-5;
  for (const Tensor& one : leaves) {
    REQUIRE(one.grad().defined());
    const Values gradient = to_doubles(one.grad());
    for (std::int64_t i = 0; i < one.numel(); ++i) {
      double& element = one.data<double>()[i];
      const double before = element;
      element = before + step;
      const double above = value().item();
      element = before - step;
      const double below = value().item();
      element = before;
      CHECK(gradient[static_cast<std::size_t>(i)] ==
            Approx((above - below) / (2 * step)).margin(1e-7));
    }
  }
}

}  // namespace

TEST_CASE("Linear is x times the transposed weight, plus the bias") {
  for (const bool bias : {true, false}) {
    nn::Linear linear(4, 3, bias, 0.1, DType::f64);
    fill(linear);
    CHECK(linear.parameters().size() == (bias ? 2U : 1U));
    const Tensor x = pattern({2, 5, 4}, 0.9);
    const Values in = to_doubles(x);
    const Values w = to_doubles(linear.parameter("weight")->value);
    Values expected;
    for (std::size_t row = 0; row < 10; ++row) {
      for (std::size_t o = 0; o < 3; ++o) {
        double sum = bias ? to_doubles(linear.parameter("bias")->value)[o] : 0;
        for (std::size_t i = 0; i < 4; ++i) {
          sum += in[row * 4 + i] * w[o * 4 + i];
        }
        expected.push_back(sum);
      }
    }
    const Tensor y = linear(x);
    CHECK(y.shape() == Dims{2, 5, 3});
    CHECK(largest(to_doubles(y), expected) < tolerance);
    check_gradients(linear, [&](const Tensor& leaf) { return linear(leaf); }, x);
  }
}

TEST_CASE("Embedding takes rows, and its gradient adds where an index repeats") {
  nn::Embedding embedding(5, 3, 0.1, DType::f64);
  fill(embedding);
  const Tensor indices = from_values<std::int64_t>({4, 0, 4, 2}, {2, 2});
  const Tensor y = embedding(indices);
  CHECK(y.shape() == Dims{2, 2, 3});
  const Values weight = to_doubles(embedding.parameter("weight")->value);
  const Values out = to_doubles(y);
  const std::vector<std::size_t> rows = {4, 0, 4, 2};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t d = 0; d < 3; ++d) {
      CHECK(out[i * 3 + d] == weight[rows[i] * 3 + d]);
    }
  }
  backward(ops::sum(y));
  CHECK(to_doubles(embedding.parameter("weight")->value.grad()) ==
        Values{1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 2, 2, 2});
}

TEST_CASE("RMSNorm divides by the root of the mean square, and scales") {
  constexpr double eps = 1e-2;  // large enough to matter
  nn::RMSNorm norm(4, eps, DType::f64);
  fill(norm);
  const Tensor x = pattern({3, 4}, 1.1);
  const Values in = to_doubles(x);
  const Values weight = to_doubles(norm.parameter("weight")->value);
  Values expected;
  for (std::size_t row = 0; row < 3; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      squares += in[row * 4 + i] * in[row * 4 + i];
    }
    for (std::size_t i = 0; i < 4; ++i) {
      expected.push_back(in[row * 4 + i] / std::sqrt(squares / 4 + eps) * weight[i]);
    }
  }
  CHECK(largest(to_doubles(norm(x)), expected) < tolerance);
  check_gradients(norm, [&](const Tensor& leaf) { return norm(leaf); }, x);
}

TEST_CASE("LayerNorm has mean 0 and variance 1 before it scales and shifts") {
  constexpr double eps = 1e-2;
  for (const bool bias : {true, false}) {
    nn::LayerNorm norm(4, eps, bias, DType::f64);
    CHECK(norm.parameters().size() == (bias ? 2 : 1));
    fill(norm);
    const Tensor x = pattern({3, 4}, 1.1);
    const Values in = to_doubles(x);
    const Values weight = to_doubles(norm.parameter("weight")->value);
    const Values shift = bias ? to_doubles(norm.parameter("bias")->value) : Values(4, 0);
    Values expected;
    for (std::size_t row = 0; row < 3; ++row) {
      double mean = 0;
      double square = 0;
      for (std::size_t i = 0; i < 4; ++i) {
        mean += in[row * 4 + i] / 4;
        square += in[row * 4 + i] * in[row * 4 + i] / 4;
      }
      for (std::size_t i = 0; i < 4; ++i) {
        expected.push_back((in[row * 4 + i] - mean) / std::sqrt(square - mean * mean + eps) *
                               weight[i] +
                           shift[i]);
      }
    }
    CHECK(largest(to_doubles(norm(x)), expected) < tolerance);
    check_gradients(norm, [&](const Tensor& in_) { return norm(in_); }, x);
  }
}

TEST_CASE("Gelu is x times the normal distribution, or its form by tanh") {
  const Tensor x = pattern({5}, 0.4);
  Values exact;
  Values by_tanh;
  for (const double v : to_doubles(x)) {
    exact.push_back(v * 0.5 * (1 + std::erf(v / std::sqrt(2.0))));
    by_tanh.push_back(0.5 * v *
                      (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v))));
  }
  nn::Gelu gelu;
  nn::Gelu approximate(true);
  CHECK(largest(to_doubles(gelu(x)), exact) < tolerance);
  CHECK(largest(to_doubles(approximate(x)), by_tanh) < tolerance);
  check_gradients(gelu, [&](const Tensor& in) { return gelu(in); }, x);
}

TEST_CASE("Conv2d sums over its kernel, in groups, with strides and a bias") {
  nn::Conv2d conv(4, 2, {3, 2}, {.stride = {2, 1}, .padding = {1, 0}, .groups = 2}, true, 1,
                  DType::f64);
  CHECK(conv.parameter("weight")->value.shape() == Dims{2, 2, 3, 2});
  fill(conv);
  const Tensor x = pattern({2, 4, 5, 4}, 0.9);
  const Values in = to_doubles(x);
  const Values weight = to_doubles(conv.parameter("weight")->value);
  const Values bias = to_doubles(conv.parameter("bias")->value);
  Values expected;
  for (int n = 0; n < 2; ++n) {
    for (int o = 0; o < 2; ++o) {
      for (int row = 0; row < 3; ++row) {
        for (int column = 0; column < 3; ++column) {
          double sum = bias[static_cast<std::size_t>(o)];
          for (int c = 0; c < 2; ++c) {
            for (int i = 0; i < 3; ++i) {
              for (int j = 0; j < 2; ++j) {
                const int y = row * 2 + i - 1;
                if (y >= 0 && y < 5) {
                  sum +=
                      weight[static_cast<std::size_t>(((o * 2 + c) * 3 + i) * 2 + j)] *
                      in[static_cast<std::size_t>(((n * 4 + o * 2 + c) * 5 + y) * 4 + column + j)];
                }
              }
            }
          }
          expected.push_back(sum);
        }
      }
    }
  }
  CHECK(largest(to_doubles(conv(x)), expected) < tolerance);
  check_gradients(conv, [&](const Tensor& in_) { return conv(in_); }, x);
  CHECK_THROWS_WITH(nn::Conv2d(3, 2, {3, 3}, {.groups = 2}, false, 1),
                    Catch::Contains("channels that the groups divide"));
  CHECK_THROWS_WITH(nn::Conv2d(2, 2, {3}, {}, false, 1), Catch::Contains("a kernel of two sizes"));
}

TEST_CASE("Dropout zeroes a share of p and scales the rest, in training only") {
  constexpr double p = 0.3;
  nn::Dropout dropout(p);
  set_seed(8);
  Tensor x = full({4000}, 2.0, DType::f64);
  x.set_requires_grad();
  const Tensor y = dropout(x);
  std::int64_t dropped = 0;
  for (const double value : to_doubles(y)) {
    if (value == 0) {
      ++dropped;
    } else {
      CHECK(value == Approx(2 / (1 - p)));
    }
  }
  // Five standard deviations of a binomial.
  CHECK(std::abs(static_cast<double>(dropped) - 4000 * p) < 5 * std::sqrt(4000 * p * (1 - p)));
  backward(ops::sum(y));
  const Values out = to_doubles(y);
  const Values gradient = to_doubles(x.grad());
  for (std::size_t i = 0; i < out.size(); ++i) {
    REQUIRE(gradient[i] == Approx(out[i] / 2));
  }
  CHECK(to_doubles(dropout(x)) != out);  // each call draws again
  dropout.train(false);
  CHECK(to_doubles(dropout(x)) == Values(4000, 2.0));
  dropout.train(true);
  CHECK(to_doubles(dropout(x)) != Values(4000, 2.0));
}

TEST_CASE("CrossEntropyLoss sums -log softmax of the targets that are not ignored") {
  nn::CrossEntropyLoss loss(-7);
  const Tensor logits = pattern({2, 2, 5}, 0.3);
  const Tensor targets = from_values<std::int64_t>({3, -7, 0, 4}, {2, 2});
  const Values in = to_doubles(logits);
  const std::vector<int> wanted = {3, -7, 0, 4};
  double expected = 0;
  for (std::size_t row = 0; row < 4; ++row) {
    if (wanted[row] < 0) {
      continue;
    }
    double sum = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      sum += std::exp(in[row * 5 + i]);
    }
    expected += std::log(sum) - in[row * 5 + static_cast<std::size_t>(wanted[row])];
  }
  CHECK(loss({logits, targets})[0].item() == Approx(expected));
  CHECK(loss.by_name({{"target", targets}, {"input", logits}})[0].item() == Approx(expected));
  check_gradients(loss, [&](const Tensor& x) { return loss({x, targets})[0]; }, logits);
}
