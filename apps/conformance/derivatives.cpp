module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

// First and second derivatives against finite differences.
namespace tessera::conformance {
namespace {

/// How far a variable is moved, and how far a derivative may then be from the difference.
struct Precision {
  double step;
  double tolerance;
  double epsilon;  // of a result
};

Precision precision_of(const CallSample& sample) {
  const bool coarse = std::ranges::any_of(
      sample.inputs, [](const Tensor& x) { return x && x.dtype() == DType::f32; });
  return coarse ? Precision{0x1p-8, 5e-3, 4e-7} : Precision{1e-5, 1e-5, 1e-15};
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

void move_element(const Tensor& x, std::size_t k, double by) {
  if (x.dtype() == DType::f32) {
    x.data<float>()[k] += static_cast<float>(by);
  } else {
    x.data<double>()[k] += by;
  }
}

using Scalar = std::function<double(const std::vector<Tensor>& variables)>;

/// Compares `found` with differences of f, but at kinks: where those to both sides disagree.
void compare_with_differences(const CallSample& sample, int order, const Scalar& f,
                              std::span<const Tensor> found, DerivativeAccount& account) {
  const Precision precision = precision_of(sample);
  const double step = precision.step;
  const std::vector<Tensor> middle_variables = fresh_variables(sample, order);
  const double middle = f(middle_variables);
  const double rounding = precision.epsilon * std::abs(middle) / step;
  for (std::size_t i = 0; i < middle_variables.size(); ++i) {
    const Tensor& x = middle_variables[i];
    if (!x || !is_floating(x.dtype())) {
      continue;
    }
    const std::vector<double> gradient =
        found[i] ? to_doubles(found[i])
                 : std::vector<double>(static_cast<std::size_t>(x.numel()), 0.0);
    for (std::size_t k = 0; k < gradient.size(); ++k) {
      const auto moved = [&](double by) {
        const std::vector<Tensor> variables = fresh_variables(sample, order);
        move_element(variables[i], k, by);
        return f(variables);
      };
      const double right = (moved(step) - middle) / step;
      const double left = (middle - moved(-step)) / step;
      const double scale = 1 + std::abs(right) + std::abs(left);
      const bool kink = std::abs(right - left) > 0.02 * scale + 2 * rounding;
      const bool jump = !(scale < 0.01 / step);
      if (kink || (jump && step < 1e-3)) {
        ++account.skipped;
        continue;
      }
      ++account.compared;
      const double wanted = (right + left) / 2;
      if (!(std::abs(gradient[k] - wanted) <= precision.tolerance * scale + rounding)) {
        account.findings.push_back(sample.name + ": derivative " + std::to_string(order) +
                                   " by variable " + std::to_string(i) + ", element " +
                                   std::to_string(k) + " is " + std::to_string(gradient[k]) +
                                   ", the difference is " + std::to_string(wanted));
      }
    }
  }
}

/// The weights of `tensors` that have one and a gradient's path.
struct WeightedTensors {
  std::vector<Tensor> tensors;
  std::vector<Tensor> weights;

  WeightedTensors(std::span<const Tensor> all, std::span<const Tensor> all_weights) {
    for (std::size_t i = 0; i < all_weights.size(); ++i) {
      if (all_weights[i] && all[i] && all[i].requires_grad()) {
        tensors.push_back(all[i]);
        weights.push_back(all_weights[i]);
      }
    }
  }
};

/// Weights for the gradients.
std::vector<Tensor> some_weights(std::span<const Tensor> variables) {
  std::vector<Tensor> weights(variables.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Tensor& x = variables[i];
    if (x && is_floating(x.dtype())) {
      weights[i] = ops::cast(ops::add_scalar(numbers(x.shape(), 1), -1.5), x.dtype());
    }
  }
  return weights;
}

}  // namespace

std::vector<Tensor> fresh_variables(const CallSample& sample, int order) {
  std::vector<Tensor> variables;
  const auto add = [&](const Tensor& x) {
    variables.push_back(copy_of(x));
    if (x && is_floating(x.dtype())) {
      variables.back().set_requires_grad();
    }
  };
  std::ranges::for_each(sample.inputs, add);
  if (order > 1) {
    std::ranges::for_each(sample.output_gradients, add);
  }
  return variables;
}

std::vector<Tensor> derivatives(const CallSample& sample, const std::vector<Tensor>& variables,
                                int order) {
  const auto inputs = std::span(variables).first(sample.inputs.size());
  const auto output_gradients = std::span(variables).subspan(sample.inputs.size());
  const Tensors out = call(*sample.op, inputs, sample.attributes);
  std::vector<Tensor> found(out.begin(), out.end());
  std::vector<Tensor> weights(output_gradients.begin(), output_gradients.end());
  if (weights.empty()) {
    weights = sample.output_gradients;
  }
  std::vector<Tensor> wanted;
  for (const Tensor& x : variables) {
    if (x && x.requires_grad()) {
      wanted.push_back(x);
    }
  }
  for (int i = 1; i <= order; ++i) {
    const WeightedTensors roots(found, weights);
    std::vector<Tensor> of_wanted(wanted.size());
    if (!roots.tensors.empty()) {
      of_wanted = gradients(roots.tensors, roots.weights, wanted, {.create_graph = i < order});
    }
    found.assign(variables.size(), {});
    std::size_t next = 0;
    for (std::size_t k = 0; k < variables.size(); ++k) {
      if (variables[k] && variables[k].requires_grad()) {
        found[k] = of_wanted[next++];
      }
    }
    weights = some_weights(variables);
  }
  return found;
}

void check_derivatives(const CallSample& sample, int order, DerivativeAccount& account) {
  const auto f = [&](const std::vector<Tensor>& variables) {
    const std::vector<Tensor> found = derivatives(sample, variables, order - 1);
    return weighted_sum(found, order == 1 ? sample.output_gradients : some_weights(variables));
  };
  compare_with_differences(sample, order, f,
                           derivatives(sample, fresh_variables(sample, order), order), account);
}

}  // namespace tessera::conformance
