// One step of Adam and of AdamW.
module;
#include "optimizer/kernels/rules.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

template <bool decoupled>
functions::Adam numbers_of(const AdamStep& s) {
  return kernels::adam_of(s, decoupled);
}

const Op& adam_op = updates::register_update<AdamStep, numbers_of<false>>(
    "adam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!..., max_exp_avg_sqs!...?)",
    "One step of Adam for all parameters; writes them and their state.");
const Op& adamw_op = updates::register_update<AdamStep, numbers_of<true>>(
    "adamw_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!..., max_exp_avg_sqs!...?)",
    "One step of AdamW for all parameters; writes them and their state.");

}  // namespace

void adam_(TensorList parameters, TensorList gradients, TensorList exp_avgs, TensorList exp_avg_sqs,
           TensorList max_exp_avg_sqs, const AdamStep& settings) {
  call_lists(adam_op, {parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, settings);
}

void adamw_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, TensorList max_exp_avg_sqs, const AdamStep& settings) {
  call_lists(adamw_op, {parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, settings);
}

}  // namespace tessera::ops
