// conv1d: a line is an image of height 1.
module;
#include <fmt/format.h>

#include <string>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Convolution& settings) {
  operands::given("conv1d", x ? "weight" : "x", x ? weight : x);
  if (x.dims() < 2 || x.dims() > 3 || weight.dims() != 3) {
    fail({.thing = "conv1d",
          .wrong = "the operands have the wrong number of dims",
          .expected = "x [N, C, L] or [C, L] and weight [out, C / groups, k]",
          .got = fmt::format("{} and {}", to_string(x.shape()), to_string(weight.shape()))});
  }
  return squeeze(conv2d(unsqueeze(x, -2), unsqueeze(weight, -2), bias,
                        {.stride = {1, settings.stride[0]},
                         .padding = {0, settings.padding[0]},
                         .dilation = {1, settings.dilation[0]},
                         .groups = settings.groups}),
                 -2);
}

}  // namespace tessera::ops
