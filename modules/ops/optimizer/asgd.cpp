// One step of averaged SGD.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& asgd_op = updates::register_update<AsgdStep, kernels::asgd_of<AsgdStep>>(
    "asgd_(parameters!..., gradients..., axs!...)",
    "One step of averaged SGD for all parameters; writes them and their averages.");

}  // namespace

void asgd_(TensorList parameters, TensorList gradients, TensorList axs, const AsgdStep& settings) {
  call_lists(asgd_op, {parameters, gradients, axs}, settings);
}

}  // namespace tessera::ops
