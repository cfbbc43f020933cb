// The steps of optimizers as operators: each is one pass over all parameters by a rule of
// optimizer/functions.
module;
#include "optimizer/functions/adadelta.hpp"
#include "optimizer/functions/adagrad.hpp"
#include "optimizer/functions/adam.hpp"
#include "optimizer/functions/adamax.hpp"
#include "optimizer/functions/asgd.hpp"
#include "optimizer/functions/lion.hpp"
#include "optimizer/functions/nadam.hpp"
#include "optimizer/functions/radam.hpp"
#include "optimizer/functions/rmsprop.hpp"
#include "optimizer/functions/rprop.hpp"
#include "optimizer/functions/sgd.hpp"
#include "optimizer/kernels/lanes.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :update_call;

namespace tessera::ops {
namespace {

const Op& adadelta_op =
    updates::register_update<AdadeltaStep, functions::adadelta_of<AdadeltaStep>>(
        "adadelta_(parameters!..., gradients..., square_avgs!..., acc_deltas!...)",
        "One step of Adadelta for all parameters; writes them and their state.");
const Op& adagrad_op = updates::register_update<AdagradStep, functions::adagrad_of<AdagradStep>>(
    "adagrad_(parameters!..., gradients..., sums!...)",
    "One step of Adagrad for all parameters; writes them and their state.");
template <bool decoupled>
functions::Adam numbers_of(const AdamStep& s) {
  return functions::adam_of(s, decoupled);
}

const Op& adam_op = updates::register_update<AdamStep, numbers_of<false>>(
    "adam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!..., max_exp_avg_sqs!...?)",
    "One step of Adam for all parameters; writes them and their state.");
const Op& adamw_op = updates::register_update<AdamStep, numbers_of<true>>(
    "adamw_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!..., max_exp_avg_sqs!...?)",
    "One step of AdamW for all parameters; writes them and their state.");
const Op& adamax_op = updates::register_update<AdamaxStep, functions::adamax_of<AdamaxStep>>(
    "adamax_(parameters!..., gradients..., exp_avgs!..., exp_infs!...)",
    "One step of Adamax for all parameters; writes them and their state.");
const Op& asgd_op = updates::register_update<AsgdStep, functions::asgd_of<AsgdStep>>(
    "asgd_(parameters!..., gradients..., axs!...)",
    "One step of averaged SGD for all parameters; writes them and their averages.");
const Op& lion_op = updates::register_update<LionStep, functions::lion_of<LionStep>>(
    "lion_(parameters!..., gradients..., exp_avgs!...)",
    "One step of Lion for all parameters; writes them and their state.");
const Op& nadam_op = updates::register_update<NAdamStep, functions::nadam_of<NAdamStep>>(
    "nadam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!...)",
    "One step of NAdam for all parameters; writes them and their state.");
const Op& radam_op = updates::register_update<RAdamStep, functions::radam_of<RAdamStep>>(
    "radam_(parameters!..., gradients..., exp_avgs!..., exp_avg_sqs!...)",
    "One step of RAdam for all parameters; writes them and their state.");
const Op& rmsprop_op = updates::register_update<RMSpropStep, functions::rmsprop_of<RMSpropStep>>(
    "rmsprop_(parameters!..., gradients..., square_avgs!..., momentum_buffers!...?, "
    "grad_avgs!...?)",
    "One step of RMSprop for all parameters; writes them and their state.");
const Op& rprop_op = updates::register_update<RpropStep, functions::rprop_of<RpropStep>>(
    "rprop_(parameters!..., gradients..., prevs!..., step_sizes!...)",
    "One step of Rprop for all parameters; writes them and their state.");
const Op& sgd_op = updates::register_update<SgdStep, functions::sgd_of<SgdStep>>(
    "sgd_(parameters!..., gradients..., momentum_buffers!...?)",
    "One step of SGD for all parameters; writes them and momentum_buffers.");

}  // namespace

void adadelta_(TensorList parameters, TensorList gradients, TensorList square_avgs,
               TensorList acc_deltas, const AdadeltaStep& settings) {
  call_lists(adadelta_op, {parameters, gradients, square_avgs, acc_deltas}, settings);
}

void adagrad_(TensorList parameters, TensorList gradients, TensorList sums,
              const AdagradStep& settings) {
  call_lists(adagrad_op, {parameters, gradients, sums}, settings);
}

void adam_(TensorList parameters, TensorList gradients, TensorList exp_avgs, TensorList exp_avg_sqs,
           TensorList max_exp_avg_sqs, const AdamStep& settings) {
  call_lists(adam_op, {parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, settings);
}

void adamw_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, TensorList max_exp_avg_sqs, const AdamStep& settings) {
  call_lists(adamw_op, {parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, settings);
}

void adamax_(TensorList parameters, TensorList gradients, TensorList exp_avgs, TensorList exp_infs,
             const AdamaxStep& settings) {
  call_lists(adamax_op, {parameters, gradients, exp_avgs, exp_infs}, settings);
}

void asgd_(TensorList parameters, TensorList gradients, TensorList axs, const AsgdStep& settings) {
  call_lists(asgd_op, {parameters, gradients, axs}, settings);
}

void lion_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
           const LionStep& settings) {
  call_lists(lion_op, {parameters, gradients, exp_avgs}, settings);
}

void nadam_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, const NAdamStep& settings) {
  call_lists(nadam_op, {parameters, gradients, exp_avgs, exp_avg_sqs}, settings);
}

void radam_(TensorList parameters, TensorList gradients, TensorList exp_avgs,
            TensorList exp_avg_sqs, const RAdamStep& settings) {
  call_lists(radam_op, {parameters, gradients, exp_avgs, exp_avg_sqs}, settings);
}

void rmsprop_(TensorList parameters, TensorList gradients, TensorList square_avgs,
              TensorList momentum_buffers, TensorList grad_avgs, const RMSpropStep& settings) {
  call_lists(rmsprop_op, {parameters, gradients, square_avgs, momentum_buffers, grad_avgs},
             settings);
}

void rprop_(TensorList parameters, TensorList gradients, TensorList prevs, TensorList step_sizes,
            const RpropStep& settings) {
  call_lists(rprop_op, {parameters, gradients, prevs, step_sizes}, settings);
}

void sgd_(TensorList parameters, TensorList gradients, TensorList momentum_buffers,
          const SgdStep& settings) {
  call_lists(sgd_op, {parameters, gradients, momentum_buffers}, settings);
}

}  // namespace tessera::ops
