// One step of SGD.
module;
#include "optimizer/functions/sgd.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

functions::Sgd sgd_of(const SgdStep& s) {
  return {.gradient = updates::own_gradient(s),
          .rate = s.lr,
          .momentum = s.momentum,
          .dampening = s.dampening,
          .nesterov = s.nesterov,
          .first = s.step == 1};
}

const Op& sgd_op = updates::register_update<SgdStep, sgd_of>(
    "sgd_(parameters!..., gradients..., momentum_buffers!...?)",
    "One step of SGD for all parameters; writes them and momentum_buffers.");

}  // namespace

void sgd_(TensorList parameters, TensorList gradients, TensorList momentum_buffers,
          const SgdStep& settings) {
  call_lists(sgd_op, {parameters, gradients, momentum_buffers}, settings);
}

}  // namespace tessera::ops
