module;
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

namespace tessera::optim {
namespace {

/// Reduces terms of several layouts with one collective for each axis at most: those that are
/// Partial on an axis join before it is reduced.
Tensor total_of(std::vector<Tensor> terms) {
  const int axes = terms.front().layout().ndim();
  for (int axis = 0; axis < axes; ++axis) {
    std::map<std::uint32_t, Tensor> by_layout;
    for (Tensor& term : terms) {
      Tensor& sum = by_layout[term.layout().id()];
      sum = sum ? ops::add(sum, term) : term;
    }
    // A term that is Replicate here meets Partial ones as a Partial: rank 0 of the axis keeps it.
    const bool partial = std::any_of(by_layout.begin(), by_layout.end(), [&](const auto& entry) {
      return entry.second.layout().placement(axis).is_partial();
    });
    terms.clear();
    std::map<std::uint32_t, Tensor> joined;
    for (auto& [id, term] : by_layout) {
      Tensor alike = partial ? redistribute_axis(term, axis, Partial()) : term;
      Tensor& sum = joined[alike.layout().id()];
      sum = sum ? ops::add(sum, alike) : alike;
    }
    for (auto& [id, sum] : joined) {
      terms.push_back(redistribute_axis(sum, axis, Replicate()));
    }
  }
  Tensor total = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i) {
    total = ops::add(total, terms[i]);
  }
  return total;
}

Tensor sum_of_squares(std::span<const nn::ParameterPointer> parameters) {
  const NoGrad no_grad;
  Tensor sum;
  std::vector<Tensor> distributed;
  for (const nn::ParameterPointer& parameter : parameters) {
    const Tensor& gradient = parameter->value.grad();
    if (!gradient) {
      continue;
    }
    Tensor square = ops::squared_norm(gradient);
    if (square.is_distributed()) {
      distributed.push_back(std::move(square));
    } else {
      sum = sum ? ops::add(sum, square) : square;
    }
  }
  if (!distributed.empty()) {
    const Tensor total = total_of(std::move(distributed)).local();
    sum = sum ? ops::add(sum, total) : total;
  }
  return sum ? sum : zeros({}, DType::f64);
}

}  // namespace

Tensor squared_gradient_norm(std::span<const nn::ParameterPointer> parameters) {
  Tensor sum;
  run_phase("gradient norm", [&] { sum = sum_of_squares(parameters); });
  return sum;
}

double global_gradient_norm(std::span<const nn::ParameterPointer> parameters) {
  return std::sqrt(squared_gradient_norm(parameters).item());
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace tessera::optim
