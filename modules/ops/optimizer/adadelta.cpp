// One step of Adadelta.
module;
#include "optimizer/functions/adadelta.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

functions::Adadelta adadelta_of(const AdadeltaStep& s) {
  return {.gradient = updates::own_gradient(s), .rate = s.lr, .rho = s.rho, .eps = s.eps};
}

const Op& adadelta_op = updates::register_update<AdadeltaStep, adadelta_of>(
    "adadelta_(parameters!..., gradients..., square_avgs!..., acc_deltas!...)",
    "One step of Adadelta for all parameters; writes them and their state.");

}  // namespace

void adadelta_(TensorList parameters, TensorList gradients, TensorList square_avgs,
               TensorList acc_deltas, const AdadeltaStep& settings) {
  call_lists(adadelta_op, {parameters, gradients, square_avgs, acc_deltas}, settings);
}

}  // namespace tessera::ops
