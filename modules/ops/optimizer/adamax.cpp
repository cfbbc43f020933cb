// One step of Adamax.
module;
#include "optimizer/functions/adamax.hpp"

#include <cmath>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

functions::Adamax adamax_of(const AdamaxStep& s) {
  const auto step = static_cast<double>(s.step.value);
  return {.gradient = updates::own_gradient(s),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .step_size = s.lr / (1.0 - std::pow(s.beta1.value, step))};
}

const Op& adamax_op = updates::register_update<AdamaxStep, adamax_of>(
    "adamax_(parameters!..., gradients..., exp_avgs!..., exp_infs!...)",
    "One step of Adamax for all parameters; writes them and their state.");

}  // namespace

void adamax_(TensorList parameters, TensorList gradients, TensorList exp_avgs, TensorList exp_infs,
             const AdamaxStep& settings) {
  call_lists(adamax_op, {parameters, gradients, exp_avgs, exp_infs}, settings);
}

}  // namespace tessera::ops
