// First and second derivatives of every operator with small f64 samples against differences, and
// the texts of errors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

#include "operator_samples.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

const OperatorSamples& all_samples() {
  static const OperatorSamples samples = read_operator_samples(TESSERA_REFERENCE_DATA);
  return samples;
}

bool is_small_and_differentiable(const OperatorSample& sample) {
  std::int64_t elements = 0;
  for (const Tensor& x : sample.inputs) {
    if (x && is_floating(x.dtype())) {
      elements += x.numel();
      if (x.dtype() != DType::f64) {
        return false;
      }
      for (const double value : to_doubles(x)) {
        if (std::isinf(value)) {
          return false;
        }
      }
    }
  }
  for (const Tensor& y : sample.outputs) {
    if (is_floating(y.dtype()) && y.dtype() != DType::f64) {
      return false;
    }
  }
  const bool used = std::any_of(sample.input_gradients.begin(), sample.input_gradients.end(),
                                [](const Tensor& g) { return g.defined(); });
  return used && elements > 0 && elements <= 40;
}

/// Sum of results times weights; of those results that are floating and weighted.
double weighted_sum(std::span<const Tensor> results, std::span<const Tensor> weights) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] && results[i]) {
      const std::vector<double> r = to_doubles(results[i]);
      const std::vector<double> w = to_doubles(weights[i]);
      for (std::size_t k = 0; k < r.size(); ++k) {
        sum += r[k] * w[k];
      }
    }
  }
  return sum;
}

using Scalar = std::function<double(const std::vector<Tensor>& inputs)>;

/// Compares `found` with differences of f at the sample's inputs. Where the differences to the left
/// and to the right disagree there is a kink, and nothing to compare.
void compare_with_differences(const OperatorSample& sample, const Scalar& f,
                              std::span<const Tensor> found) {
  constexpr double step = 1e-5;
  const double middle = f(fresh_inputs(sample, false));
  const double rounding = 1e-15 * std::abs(middle) / step;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    if (!sample.inputs[i] || !is_floating(sample.inputs[i].dtype())) {
      continue;
    }
    const std::vector<double> gradient =
        found[i] ? to_doubles(found[i])
                 : std::vector<double>(static_cast<std::size_t>(sample.inputs[i].numel()), 0.0);
    for (std::size_t k = 0; k < gradient.size(); ++k) {
      const auto moved = [&](double by) {
        std::vector<Tensor> inputs = fresh_inputs(sample, false);
        inputs[i].data<double>()[k] += by;
        return f(inputs);
      };
      const double right = (moved(step) - middle) / step;
      const double left = (middle - moved(-step)) / step;
      const double scale = 1 + std::abs(right) + std::abs(left);
      const bool kink = std::abs(right - left) > 0.02 * scale;
      const bool jump = !(scale < 0.01 / step);
      if (kink || jump) {
        continue;
      }
      INFO("operand " << i << ", element " << k << ": " << gradient[k] << " against "
                      << (right + left) / 2);
      CHECK(std::abs(gradient[k] - (right + left) / 2) <= 1e-5 * scale + rounding);
    }
  }
}

/// Notes operators whose results count as constants though they have floating operands.
class ConstantFinder final : public Listener {
 public:
  void called(const Call& call, std::span<const Tensor> out) override {
    const bool exact = call.op.name.ends_with("_like") || call.op.in_place;
    if (call.op.backward == nullptr && !exact && is_floating(out[0].dtype())) {
      found = true;
    }
  }
  bool found = false;
};

std::vector<Tensor> gradients_of(const OperatorSample& sample, const std::vector<Tensor>& inputs,
                                 bool create_graph) {
  const Tensors out = call(*sample.op, inputs, sample.attributes);
  std::vector<Tensor> roots;
  std::vector<Tensor> weights;
  for (std::size_t i = 0; i < sample.output_gradients.size(); ++i) {
    if (sample.output_gradients[i]) {
      roots.push_back(out[i]);
      weights.push_back(sample.output_gradients[i]);
    }
  }
  std::vector<Tensor> wanted;
  for (const Tensor& x : inputs) {
    if (x && x.requires_grad()) {
      wanted.push_back(x);
    }
  }
  const std::vector<Tensor> found =
      gradients(roots, weights, wanted, {.create_graph = create_graph});
  std::vector<Tensor> all(inputs.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] && inputs[i].requires_grad()) {
      all[i] = found[next++];
    }
  }
  return all;
}

/// Weights for the gradients, different for each element.
std::vector<Tensor> some_weights(const OperatorSample& sample) {
  std::vector<Tensor> weights(sample.inputs.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (sample.input_gradients[i]) {
      weights[i] = empty(sample.inputs[i].shape(), DType::f64);
      for (std::int64_t k = 0; k < weights[i].numel(); ++k) {
        weights[i].data<double>()[k] = std::sin(1.0 + 0.7 * static_cast<double>(k));
      }
    }
  }
  return weights;
}

template <class F>
void for_each_small_sample(F&& check) {
  for (const OperatorSample& sample : all_samples().samples) {
    if (!is_small_and_differentiable(sample)) {
      continue;
    }
    INFO(sample.name << " " << sample.op->schema);
    try {
      check(sample);
    } catch (const std::exception& error) {
      FAIL_CHECK(sample.name << " throws: " << error.what());
    }
  }
}

}  // namespace

TEST_CASE("gradients are the limits of differences") {
  for_each_small_sample([](const OperatorSample& sample) {
    const auto f = [&](const std::vector<Tensor>& inputs) {
      return weighted_sum(call(*sample.op, inputs, sample.attributes), sample.output_gradients);
    };
    compare_with_differences(sample, f, gradients_of(sample, fresh_inputs(sample, true), false));
  });
}

TEST_CASE("gradients of gradients are the limits of differences") {
  std::set<std::string> constant;
  std::set<std::string> checked;
  for_each_small_sample([&](const OperatorSample& sample) {
    ConstantFinder finder;
    Listener* const before = set_listener(ListenAt::below_distribution, &finder);
    gradients_of(sample, fresh_inputs(sample, true), false);
    set_listener(ListenAt::below_distribution, before);
    if (finder.found) {
      constant.insert(sample.op->name);
      return;
    }
    checked.insert(sample.op->name);
    const std::vector<Tensor> weights = some_weights(sample);
    const auto f = [&](const std::vector<Tensor>& plain) {
      std::vector<Tensor> inputs = plain;
      for (Tensor& x : inputs) {
        if (x && is_floating(x.dtype())) {
          x.set_requires_grad();
        }
      }
      return weighted_sum(gradients_of(sample, inputs, false), weights);
    };
    const std::vector<Tensor> inputs = fresh_inputs(sample, true);
    const std::vector<Tensor> first = gradients_of(sample, inputs, true);
    std::vector<Tensor> roots;
    std::vector<Tensor> root_weights;
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (first[i] && weights[i] && first[i].requires_grad()) {
        roots.push_back(first[i]);
        root_weights.push_back(weights[i]);
      }
    }
    std::vector<Tensor> second(inputs.size());
    if (!roots.empty()) {
      backward(roots, root_weights);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        second[i] = inputs[i] ? inputs[i].grad() : Tensor();
      }
    }
    compare_with_differences(sample, f, second);
  });
  std::cout << "operators without second derivatives:";
  for (const std::string& name : constant) {
    std::cout << " " << name;
  }
  std::cout << "\n";
  CHECK(checked.size() > 40);
}

TEST_CASE("errors begin with the operator's name") {
  const Tensor x = zeros({2, 3});
  const Tensor y = zeros({4});
  const std::map<std::string, std::function<void()>> mistakes = {
      {"add", [&] { ops::add(x, y); }},
      {"mul", [&] { ops::mul(x, y); }},
      {"eq", [&] { ops::eq(x, y); }},
      {"where", [&] { ops::where(x, x, x); }},
      {"masked_fill", [&] { ops::masked_fill(x, y, 0); }},
      {"add_", [&] { ops::add_(y, x); }},
      {"copy_", [&] { ops::copy_(y, x); }},
      {"sum", [&] { ops::sum(x, {2}); }},
      {"mean", [&] { ops::mean(ops::cast(x, DType::i64)); }},
      {"amax", [&] { ops::amax(zeros({0, 2}), {0}); }},
      {"cumsum", [&] { ops::cumsum(x, 2); }},
      {"view", [&] { ops::view(x, {4, -1}); }},
      {"permute", [&] { ops::permute(x, {0, 0}); }},
      {"expand", [&] { ops::expand(x, {4, 3}); }},
      {"narrow", [&] { ops::narrow(x, 1, 2, 2); }},
      {"select", [&] { ops::select(x, 0, 2); }},
      {"slice", [&] { ops::slice(x, 0, 0, 1, 0); }},
      {"cat", [&] { ops::cat(std::vector{x, y}); }},
      {"stack", [&] { ops::stack(std::vector{x, y}); }},
      {"split", [&] { ops::split(x, 0); }},
  };
  for (const auto& [name, mistake] : mistakes) {
    std::string text = "no error";
    try {
      mistake();
    } catch (const Error& error) {
      text = error.what();
    }
    INFO(text);
    CHECK(text.starts_with(name + ": "));
  }
}

TEST_CASE("a gradient that others share is not added to in place") {
  const Tensor x = from_values<double>({1, 2, 3}, {3}).set_requires_grad();
  // The sum's gradient repeats one number, and reaches x by two views of the same memory.
  const Tensor y = ops::add(ops::view(x, {3}), ops::add(ops::view(x, {3}), x));
  backward(ops::sum(y));
  CHECK(to_doubles(x.grad()) == std::vector<double>{3, 3, 3});
}
