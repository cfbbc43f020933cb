// One step of Adadelta.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& adadelta_op = updates::register_update<AdadeltaStep, kernels::adadelta_of<AdadeltaStep>>(
    "adadelta_(parameters!..., gradients..., square_avgs!..., acc_deltas!...)",
    "One step of Adadelta for all parameters; writes them and their state.");

}  // namespace

void adadelta_(TensorList parameters, TensorList gradients, TensorList square_avgs,
               TensorList acc_deltas, const AdadeltaStep& settings) {
  call_lists(adadelta_op, {parameters, gradients, square_avgs, acc_deltas}, settings);
}

}  // namespace tessera::ops
