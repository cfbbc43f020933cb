// One step of RAdam.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& radam_op = updates::register_update<RAdamStep, kernels::radam_of<RAdamStep>>(
    "radam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!...)",
    "One step of RAdam for all parameters; writes them and their state.");

}  // namespace

void radam_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, const RAdamStep& settings) {
  call_lists(radam_op, {parameters, gradients, exp_avgs, exp_avg_sqs}, settings);
}

}  // namespace tessera::ops
