// One step of Adagrad.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& adagrad_op = updates::register_update<AdagradStep, kernels::adagrad_of<AdagradStep>>(
    "adagrad_(parameters!..., gradients..., sums!...)",
    "One step of Adagrad for all parameters; writes them and their state.");

}  // namespace

void adagrad_(TensorList parameters, TensorList gradients, TensorList sums,
              const AdagradStep& settings) {
  call_lists(adagrad_op, {parameters, gradients, sums}, settings);
}

}  // namespace tessera::ops
