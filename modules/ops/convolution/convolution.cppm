export module tessera.ops:convolution;

import tessera.base;
import tessera.tensor;

export namespace tessera::ops {

// Images are [N, C, H, W] or [C, H, W]. Settings of two dims are {height, width}, or one number for
// both.

/// Options of a convolution; each per spatial dim.
struct Convolution {
  Dims stride{1};
  Dims padding{0};  // zeros
  Dims dilation{1};
  std::int64_t groups = 1;
};
/// weight [out, C / groups, kh, kw], bias [out] or undefined -> [N, out, oh, ow] with oh =
/// floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1. Sharded by batch, by output
/// channels (weight and bias on dim 0), or by input channels (weight on dim 1), which gives
/// Partial(sum); with several groups, shards must contain whole groups.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Convolution& settings = {});
/// x [N, C, L] or [C, L], weight [out, C / groups, k].
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Convolution& settings = {});

/// Options of pooling; each per spatial dim.
struct Pooling {
  Dims kernel_size;
  Dims stride{};  // none: kernel_size
  Dims padding{0};
  bool ceil_mode = false;
};
/// The largest element of each window; padding is ignored.
Tensor max_pool2d(const Tensor& x, const Pooling& settings, const Dims& dilation = Dims{1});
/// The mean of each window; padding is treated as zeros, or ignored.
Tensor avg_pool2d(const Tensor& x, const Pooling& settings, bool count_include_pad = true);
/// The mean of the window from floor(i n / m) to ceil((i + 1) n / m), for result i of m and n
/// elements.
Tensor adaptive_avg_pool2d(const Tensor& x, const Dims& output_size);

/// Ways to interpolate.
enum class InterpolateMode { nearest, linear };
/// Resizes the dims of x [N, C, ...] after the channels: the nearest element, or linear
/// interpolation along each dim (bilinear for two dims). align_corners: the centres of the first
/// and last elements are aligned; otherwise the borders are.
Tensor interpolate(const Tensor& x, const Dims& size,
                   InterpolateMode mode = InterpolateMode::nearest, bool align_corners = false);

}  // namespace tessera::ops
