// One step of Adam and of AdamW.
module;
#include "optimizer/functions/adam.hpp"

#include <cmath>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

template <bool decoupled>
functions::Adam numbers_of(const AdamStep& s) {
  return updates::adam_of(s, decoupled);
}

const Op& adam_op = updates::register_update<AdamStep, numbers_of<false>>(
    "adam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!..., max_exp_avg_sqs!...?)",
    "One step of Adam for all parameters; writes them and their state.");
const Op& adamw_op = updates::register_update<AdamStep, numbers_of<true>>(
    "adamw_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!..., max_exp_avg_sqs!...?)",
    "One step of AdamW for all parameters; writes them and their state.");

}  // namespace

functions::Adam updates::adam_of(const AdamStep& s, bool decoupled) {
  functions::Adam rule = {.gradient = own_gradient(s, decoupled),
                          .shrink = shrink(s, decoupled),
                          .beta1 = s.beta1,
                          .beta2 = s.beta2,
                          .eps = s.eps,
                          .amsgrad = s.amsgrad};
  const auto step = static_cast<double>(s.step.value);
  rule.set_step(s.lr, 1.0 - std::pow(rule.beta1, step),
                std::sqrt(1.0 - std::pow(rule.beta2, step)));
  return rule;
}

void adam_(TensorList parameters, TensorList gradients, TensorList exp_avgs, TensorList exp_avg_sqs,
           TensorList max_exp_avg_sqs, const AdamStep& settings) {
  call_lists(adam_op, {parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, settings);
}

void adamw_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, TensorList max_exp_avg_sqs, const AdamStep& settings) {
  call_lists(adamw_op, {parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, settings);
}

}  // namespace tessera::ops
