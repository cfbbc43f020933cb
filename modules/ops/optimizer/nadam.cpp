// One step of NAdam.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& nadam_op = updates::register_update<NAdamStep, kernels::nadam_of<NAdamStep>>(
    "nadam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!...)",
    "One step of NAdam for all parameters; writes them and their state.");

}  // namespace

void nadam_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, const NAdamStep& settings) {
  call_lists(nadam_op, {parameters, gradients, exp_avgs, exp_avg_sqs}, settings);
}

}  // namespace tessera::ops
