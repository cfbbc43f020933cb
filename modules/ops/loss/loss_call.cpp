module;
#include <fmt/format.h>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :loss_call;

namespace tessera::ops::losses {

void check_same_shape(const char* op, const Tensor& a, const Tensor& b) {
  operands::given(op, "a", a);
  operands::given(op, "b", b);
  if (!(a.shape() == b.shape())) {
    fail({.thing = op,
          .wrong = "the shapes differ",
          .got = fmt::format("{} and {}", to_string(a.shape()), to_string(b.shape())),
          .advice = "expand one operand"});
  }
}

Tensor reduced(const Tensor& each, Reduction reduction) {
  if (reduction == Reduction::none) {
    return each;
  }
  // The mean as a sum with a factor: shards of any size give a Partial(sum).
  const Tensor total = sum(each);
  return reduction == Reduction::sum ? total
                                     : mul_scalar(total, 1 / static_cast<double>(each.numel()));
}

}  // namespace tessera::ops::losses
