// One step of Lion.
module;
#include "optimizer/functions/lion.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

functions::Lion lion_of(const LionStep& s) {
  return {.gradient = updates::own_gradient(s, true),
          .shrink = updates::shrink(s),
          .rate = s.lr,
          .beta1 = s.beta1,
          .beta2 = s.beta2};
}

const Op& lion_op = updates::register_update<LionStep, lion_of>(
    "lion_(parameters!..., gradients..., exp_avgs!...)",
    "One step of Lion for all parameters; writes them and their state.");

}  // namespace

void lion_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
           const LionStep& settings) {
  call_lists(lion_op, {parameters, gradients, exp_avgs}, settings);
}

}  // namespace tessera::ops
