// One step of SGD.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& sgd_op = updates::register_update<SgdStep, kernels::sgd_of<SgdStep>>(
    "sgd_(parameters!..., gradients..., momentum_buffers!...?)",
    "One step of SGD for all parameters; writes them and momentum_buffers.");

}  // namespace

void sgd_(TensorList parameters, TensorList gradients, TensorList momentum_buffers,
          const SgdStep& settings) {
  call_lists(sgd_op, {parameters, gradients, momentum_buffers}, settings);
}

}  // namespace tessera::ops
