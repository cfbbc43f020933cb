// One step of Adamax.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& adamax_op = updates::register_update<AdamaxStep, kernels::adamax_of<AdamaxStep>>(
    "adamax_(parameters!..., gradients..., exp_avgs!..., exp_infs!...)",
    "One step of Adamax for all parameters; writes them and their state.");

}  // namespace

void adamax_(TensorList parameters, TensorList gradients, TensorList exp_avgs, TensorList exp_infs,
             const AdamaxStep& settings) {
  call_lists(adamax_op, {parameters, gradients, exp_avgs, exp_infs}, settings);
}

}  // namespace tessera::ops
