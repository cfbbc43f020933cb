// One step of RMSprop.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& rmsprop_op = updates::register_update<RMSpropStep, kernels::rmsprop_of<RMSpropStep>>(
    "rmsprop_(parameters!..., gradients..., square_avgs!..., momentum_buffers!...?, "
    "grad_avgs!...?)",
    "One step of RMSprop for all parameters; writes them and their state.");

}  // namespace

void rmsprop_(TensorList parameters, TensorList gradients, TensorList square_avgs,
              TensorList momentum_buffers, TensorList grad_avgs, const RMSpropStep& settings) {
  call_lists(rmsprop_op, {parameters, gradients, square_avgs, momentum_buffers, grad_avgs},
             settings);
}

}  // namespace tessera::ops
