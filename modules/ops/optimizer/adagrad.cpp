// One step of Adagrad.
module;
#include "optimizer/functions/adagrad.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

functions::Adagrad adagrad_of(const AdagradStep& s) {
  return {.gradient = updates::own_gradient(s),
          .rate = s.lr / (1.0 + (static_cast<double>(s.step.value) - 1) * s.lr_decay),
          .eps = s.eps,
          .initial = s.initial,
          .first = s.step == 1};
}

const Op& adagrad_op = updates::register_update<AdagradStep, adagrad_of>(
    "adagrad_(parameters!..., gradients..., sums!...)",
    "One step of Adagrad for all parameters; writes them and their state.");

}  // namespace

void adagrad_(TensorList parameters, TensorList gradients, TensorList sums,
              const AdagradStep& settings) {
  call_lists(adagrad_op, {parameters, gradients, sums}, settings);
}

}  // namespace tessera::ops
