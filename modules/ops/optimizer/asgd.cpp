// One step of averaged SGD.
module;
#include "optimizer/functions/asgd.hpp"

#include <algorithm>
#include <cmath>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

functions::Asgd asgd_of(const AsgdStep& s) {
  const double before = static_cast<double>(s.step.value) - 1;
  const double rate = s.lr / std::pow(1.0 + s.lambd * s.lr * before, s.alpha.value);
  return {.gradient = updates::own_gradient(s),
          .shrink = 1.0 - s.lambd * rate,
          .rate = rate,
          .weight = 1.0 / std::max(1.0, before - s.t0)};
}

const Op& asgd_op = updates::register_update<AsgdStep, asgd_of>(
    "asgd_(parameters!..., gradients..., axs!...)",
    "One step of averaged SGD for all parameters; writes them and their averages.");

}  // namespace

void asgd_(TensorList parameters, TensorList gradients, TensorList axs, const AsgdStep& settings) {
  call_lists(asgd_op, {parameters, gradients, axs}, settings);
}

}  // namespace tessera::ops
