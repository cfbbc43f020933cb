// One step of RAdam.
module;
#include "optimizer/functions/radam.hpp"

#include <cmath>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

functions::RAdam radam_of(const RAdamStep& s) {
  const auto step = static_cast<double>(s.step.value);
  const double power2 = std::pow(s.beta2.value, step);
  const double correction2 = 1.0 - power2;
  // The length of the average of squares: its limit, and that of this step.
  const double limit = 2.0 / (1.0 - s.beta2) - 1.0;
  const double length = limit - 2.0 * step * power2 / correction2;
  const bool adaptive = length > 5.0;
  const double rectification =
      adaptive ? std::sqrt((length - 4.0) * (length - 2.0) * limit /
                           ((limit - 4.0) * (limit - 2.0) * length) * correction2)
               : 1.0;
  return {.gradient = updates::own_gradient(s, s.decoupled),
          .shrink = updates::shrink(s, s.decoupled),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .rate = s.lr / (1.0 - std::pow(s.beta1.value, step)) * rectification,
          .adaptive = adaptive};
}

const Op& radam_op = updates::register_update<RAdamStep, radam_of>(
    "radam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!...)",
    "One step of RAdam for all parameters; writes them and their state.");

}  // namespace

void radam_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, const RAdamStep& settings) {
  call_lists(radam_op, {parameters, gradients, exp_avgs, exp_avg_sqs}, settings);
}

}  // namespace tessera::ops
