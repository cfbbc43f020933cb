module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <tessera/printable.hpp>
#include <utility>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import :total;

namespace tessera::optim {
namespace {

/// A gradient's term of the norm: a scalar in f64, or with `exact` digits, Partial where the
/// gradient is sharded.
Tensor term_of(const Tensor& gradient, double p, bool exact) {
  if (std::isinf(p)) {
    return largest_magnitude(gradient);
  }
  if (p == 2) {
    return exact ? exact_term(gradient, ops::ExactTerm::square) : ops::squared_norm(gradient);
  }
  const Tensor magnitudes = ops::abs(ops::cast(gradient, DType::f64));
  const Tensor powers = p == 1 ? magnitudes : ops::pow_scalar(magnitudes, p);
  return exact ? exact_term(powers, ops::ExactTerm::element) : ops::sum(powers);
}

Tensor power_of(std::span<const nn::ParameterPointer> parameters, double p, bool exact) {
  const NoGrad no_grad;
  std::vector<Tensor> terms;
  for (const nn::ParameterPointer& parameter : parameters) {
    if (const Tensor& gradient = parameter->value.grad()) {
      terms.push_back(term_of(gradient, p, exact));
    }
  }
  const Tensor total = total_of(std::move(terms), std::isinf(p));
  if (!total) {
    return zeros({}, DType::f64);
  }
  return exact && !std::isinf(p) ? ops::exact_value(total) : total;
}

}  // namespace

void Clipping::check() const {
  const auto refuse = [](const char* what, const char* expected, double got) {
    fail_input({.thing = "clipping",
                .wrong = what,
                .expected = expected,
                .got = fmt::format("{}", printable(got))});
  };
  if (!(max_norm >= 0)) {
    refuse("max_norm is not a norm", "at least 0", max_norm);
  }
  if (!(norm > 0)) {
    refuse("the norm is not one", "1, 2, infinity or another number more than 0", norm);
  }
  if (!(max_value >= 0)) {
    refuse("max_value is not a magnitude", "at least 0", max_value);
  }
  if (max_norm > 0 && max_value > 0) {
    fail_input({.thing = "clipping",
                .wrong = "max_norm and max_value are both given",
                .advice = "set one of them to 0"});
  }
}

Tensor gradient_norm_power(std::span<const nn::ParameterPointer> parameters, double p, bool exact) {
  Tensor power;
  run_phase("gradient norm", [&] { power = power_of(parameters, p, exact); });
  return power;
}

double norm_of_power(double power, double p) {
  return p == 2 ? std::sqrt(power) : p == 1 || std::isinf(p) ? power : std::pow(power, 1 / p);
}

double global_gradient_norm(std::span<const nn::ParameterPointer> parameters, double p) {
  return norm_of_power(gradient_norm_power(parameters, p).item(), p);
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

void clamp_gradients(std::span<const nn::ParameterPointer> parameters, const Number& max_value) {
  const NoGrad no_grad;
  for (const nn::ParameterPointer& parameter : parameters) {
    if (Tensor& gradient = parameter->value.grad()) {
      gradient = ops::clamp(gradient, -max_value, max_value);
    }
  }
}

double clip_gradients(std::span<const nn::ParameterPointer> parameters, const Clipping& clipping) {
  clipping.check();
  const double norm = global_gradient_norm(parameters, clipping.norm);
  if (!std::isfinite(norm)) {
    if (clipping.nonfinite == NonFinite::error) {
      fail({.thing = "clip_gradients",
            .wrong = fmt::format("the norm of the gradients is {}", printable(norm)),
            .advice = "look for values that are not finite in inputs and parameters, use a smaller "
                      "learning rate, or skip such steps (NonFinite::skip)"});
    }
    return norm;
  }
  if (clipping.max_value > 0) {
    clamp_gradients(parameters, clipping.max_value);
  }
  const double factor = clip_factor(norm, clipping.max_norm);
  if (factor < 1) {
    const NoGrad no_grad;
    for (const nn::ParameterPointer& parameter : parameters) {
      if (Tensor& gradient = parameter->value.grad()) {
        gradient = ops::mul_scalar(gradient, factor);
      }
    }
  }
  return norm;
}

}  // namespace tessera::optim
