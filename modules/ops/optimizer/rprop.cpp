// One step of Rprop.
module;
#include "optimizer/functions/rprop.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

functions::Rprop rprop_of(const RpropStep& s) {
  return {.gradient = updates::own_gradient(s),
          .decrease = s.decrease,
          .increase = s.increase,
          .smallest = s.smallest,
          .largest = s.largest,
          .initial = s.lr,
          .first = s.step == 1};
}

const Op& rprop_op = updates::register_update<RpropStep, rprop_of>(
    "rprop_(parameters!..., gradients..., prevs!..., step_sizes!...)",
    "One step of Rprop for all parameters; writes them and their state.");

}  // namespace

void rprop_(TensorList parameters, TensorList gradients, TensorList prevs, TensorList step_sizes,
            const RpropStep& settings) {
  call_lists(rprop_op, {parameters, gradients, prevs, step_sizes}, settings);
}

}  // namespace tessera::ops
