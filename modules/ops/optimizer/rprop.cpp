// One step of Rprop.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& rprop_op = updates::register_update<RpropStep, kernels::rprop_of<RpropStep>>(
    "rprop_(parameters!..., gradients..., prevs!..., step_sizes!...)",
    "One step of Rprop for all parameters; writes them and their state.");

}  // namespace

void rprop_(TensorList parameters, TensorList gradients, TensorList prevs, TensorList step_sizes,
            const RpropStep& settings) {
  call_lists(rprop_op, {parameters, gradients, prevs, step_sizes}, settings);
}

}  // namespace tessera::ops
