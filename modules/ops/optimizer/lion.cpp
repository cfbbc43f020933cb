// One step of Lion.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& lion_op = updates::register_update<LionStep, kernels::lion_of<LionStep>>(
    "lion_(parameters!..., gradients..., exp_avgs!...)",
    "One step of Lion for all parameters; writes them and their state.");

}  // namespace

void lion_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
           const LionStep& settings) {
  call_lists(lion_op, {parameters, gradients, exp_avgs}, settings);
}

}  // namespace tessera::ops
