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

void update_rounded(const ops::AdamStep& settings, const UpdateGroup& group) {
  const RandomStream& numbers = random_stream("rounding");
  for (std::size_t i = 0; i < group.parameters.size(); ++i) {
    const ops::RoundedAdamStep step = {
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
    ops::adamw_rounded_(group.parameters[i], group.gradients[i], group.states[0][i],
                        group.states[1][i], settings.amsgrad ? group.states[2][i] : Tensor(), step);
  }
}

}  // namespace tessera::optim
