// Shared parts of pooling and interpolation: checks of images and windows.
module;
#include <fmt/format.h>
module tessera.ops:pooling_call;

import tessera.base;
import tessera.tensor;
import :convolution;
import :kernel_call;
import :operands;
import :view;

namespace tessera::ops::pooling {

/// [N, C, ...]: the extents after the channels.
inline Dims spatial(const Dims& shape) {
  return shape.size() < 2 ? Dims() : Dims(shape.span().subspan(2));
}

inline Dims with_spatial(const Dims& shape, const Dims& extents) {
  Dims result{shape[0], shape[1]};
  for (const std::int64_t extent : extents) {
    result.push_back(extent);
  }
  return result;
}

inline void check_image(const Call& call, int spatial_dims) {
  const Tensor& x = call.in[0];
  operands::check_floating(call.op.name, x);
  if (spatial_dims < 1) {
    refuse(call, {.wrong = "the size has no dims", .expected = "one for each dim after [N, C]"});
  }
  if (x.dims() != spatial_dims + 2) {
    refuse(call, {.wrong = "the number of dims is wrong",
                  .expected = fmt::format("[N, C] and {} more dims", spatial_dims),
                  .got = to_string(x.shape())});
  }
}

template <class A>
inline void check_pooling(const Call& call, const A& p) {
  bool fits = p.kernel_size.size() == 2 && p.stride.size() == 2 && p.padding.size() == 2;
  for (int i = 0; fits && i < 2; ++i) {
    fits = p.kernel_size[i] > 0 && p.stride[i] > 0 && p.padding[i] >= 0 &&
           p.padding[i] <= p.kernel_size[i] / 2;
  }
  if (!fits) {
    refuse(call,
           {.wrong = "the settings are invalid",
            .expected = "positive kernel sizes and strides, and padding of at most half the kernel",
            .got = fmt::format("kernel {}, stride {}, padding {}", to_string(p.kernel_size),
                               to_string(p.stride), to_string(p.padding))});
  }
}

/// none: the kernel's size.
inline Dims stride_of(const Pooling& p) {
  return for_both_dims(p.stride.empty() ? p.kernel_size : p.stride);
}

/// Calls f with [1, C, H, W] where x is [C, H, W].
template <class F>
inline Tensor of_batch(const Tensor& x, F f) {
  return x.dims() == 3 ? squeeze(f(unsqueeze(x, 0)), 0) : f(x);
}

}  // namespace tessera::ops::pooling
