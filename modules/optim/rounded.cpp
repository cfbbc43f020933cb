// AdamW for parameters in bf16.
module;
#include <cstddef>
#include <cstdint>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :elementwise;

namespace tessera::optim {
namespace {

/// The arguments of adamw_rounded_, which are known by their names and types.
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

}  // namespace

void update_rounded(const ops::AdamStep& settings, const UpdateGroup& group) {
  static const Op& adamw_rounded = find_op("adamw_rounded_");
  const RandomStream& numbers = random_stream("rounding");
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const RoundedAdamStep step = {
        .lr = settings.lr,
        .beta1 = settings.beta1,
        .beta2 = settings.beta2,
        .eps = settings.eps,
        .weight_decay = settings.weight_decay,
        .grad_scale = settings.grad_scale,
        .step = settings.step,
        .amsgrad = settings.amsgrad,
        .maximize = settings.maximize,
        .seed = static_cast<std::int64_t>(numbers.seed),
        .stream = static_cast<std::int64_t>(numbers.stream + group.numbers[i])};
    call_one(adamw_rounded,
             {group.parameters[i], group.gradients[i], group.states[0][i], group.states[1][i],
              settings.amsgrad ? group.states[2][i] : Tensor()},
             step);
  }
}

}  // namespace tessera::optim
