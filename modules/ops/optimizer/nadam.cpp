// One step of NAdam.
module;
#include "optimizer/functions/nadam.hpp"

#include <cmath>
#include <cstdint>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

/// mu_step.
double momentum_of(const NAdamStep& s, double step) {
  return s.beta1 * (1.0 - 0.5 * std::pow(0.96, step * s.momentum_decay));
}

/// mu_1 ... mu_step. What is far below the rounding of 1 - product is left out, so this ends after
/// a few hundred factors.
double product_of_momenta(const NAdamStep& s) {
  constexpr double nothing = 1e-40;
  double product = 1;
  for (std::int64_t t = 1; t <= s.step && product > nothing; ++t) {
    product *= momentum_of(s, static_cast<double>(t));
  }
  return product;
}

functions::NAdam nadam_of(const NAdamStep& s) {
  const auto step = static_cast<double>(s.step.value);
  const double mu = momentum_of(s, step);
  const double next = momentum_of(s, step + 1);
  const double product = product_of_momenta(s);
  return {.gradient = updates::own_gradient(s, s.decoupled),
          .shrink = updates::shrink(s, s.decoupled),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .gradient_rate = s.lr * (1.0 - mu) / (1.0 - product),
          .moment_rate = s.lr * next / (1.0 - product * next),
          .root_factor = 1.0 / std::sqrt(1.0 - std::pow(s.beta2.value, step))};
}

const Op& nadam_op = updates::register_update<NAdamStep, nadam_of>(
    "nadam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!...)",
    "One step of NAdam for all parameters; writes them and their state.");

}  // namespace

void nadam_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, const NAdamStep& settings) {
  call_lists(nadam_op, {parameters, gradients, exp_avgs, exp_avg_sqs}, settings);
}

}  // namespace tessera::ops
