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

double norm_of(std::span<const nn::ParameterPointer> parameters) {
  const NoGrad no_grad;
  double plain = 0;
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
      plain += square.item();
    }
  }
  if (!distributed.empty()) {
    plain += total_of(std::move(distributed)).local().item();
  }
  return std::sqrt(plain);
}

}  // namespace

double global_gradient_norm(std::span<const nn::ParameterPointer> parameters) {
  double norm = 0;
  run_phase("gradient norm", [&] { norm = norm_of(parameters); });
  return norm;
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace tessera::optim
