#pragma once
// The arguments of the operator adamw_rounded_. Included after the imports of tessera.base and
// tessera.tensor.

namespace tessera::ops {

/// AdamStep, and which random numbers round: those of `stream` under `seed`, from 0 on, with
/// rounding_words for each element of the whole parameter in each step. `whole`: of a local call,
/// the Spec of the parameter that it has a part of.
struct RoundedAdamStep {
  Dynamic<double> lr = 0;
  Dynamic<double> beta1 = 0;
  Dynamic<double> beta2 = 0;
  Dynamic<double> eps = 0;
  Dynamic<double> weight_decay = 0;
  Dynamic<double> grad_scale = 0;
  Dynamic<std::int64_t> step = 0;
  bool amsgrad = false;
  bool maximize = false;
  std::int64_t seed = 0;
  std::int64_t stream = 0;
  SpecArgument whole = {};
};

}  // namespace tessera::ops
