// Normalisation of channels: batch_norm, group_norm.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

/// [C] as it broadcasts to [N, C, ...].
Tensor per_channel(const Tensor& x, int dims) {
  Dims shape = Dims::filled(dims, 1);
  shape[1] = x.size(0);
  return view(x, shape);
}

/// x * weight + bias for each channel; either may be undefined.
Tensor scale_channels(Tensor x, const Tensor& weight, const Tensor& bias) {
  const int dims = x.dims();
  if (weight) {
    x = mul(x, per_channel(weight, dims));
  }
  return bias ? add(x, per_channel(bias, dims)) : x;
}

void check_channels(const char* op, const Tensor& x, std::int64_t groups, const Tensor& weight,
                    const Tensor& bias) {
  operands::given(op, "x", x);
  if (x.dims() < 2 || groups < 1 || x.size(1) % groups != 0) {
    fail({.thing = op,
          .wrong = "x has the wrong shape",
          .expected = fmt::format("[N, C, ...] with C divisible by {} groups", groups),
          .got = to_string(x.shape())});
  }
  for (const Tensor& each : {weight, bias}) {
    if (each && each.shape() != Dims{x.size(1)}) {
      fail({.thing = op,
            .wrong = "weight and bias must have one element per channel",
            .expected = fmt::format("[{}]", x.size(1)),
            .got = to_string(each.shape())});
    }
  }
}

}  // namespace

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  check_channels("group_norm", x, groups, weight, bias);
  std::int64_t size = x.size(1) / groups;
  for (int d = 2; d < x.dims(); ++d) {
    size *= x.shape()[d];
  }
  const Tensor grouped = reshape(x, {x.size(0), groups, size});
  return scale_channels(reshape(layer_norm(grouped, {}, {}, eps), x.shape()), weight, bias);
}

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, bool training, double momentum,
                  double eps) {
  check_channels("batch_norm", x, 1, weight, bias);
  if (!training) {
    if (!running_mean || !running_var) {
      fail({.thing = "batch_norm",
            .wrong = "evaluation needs the running mean and variance",
            .got = "undefined tensors"});
    }
    const Tensor centred = sub(x, per_channel(running_mean, x.dims()));
    return scale_channels(mul(centred, per_channel(rsqrt(add_scalar(running_var, eps)), x.dims())),
                          weight, bias);
  }
  Dims dims{0};
  for (int d = 2; d < x.dims(); ++d) {
    dims.push_back(d);
  }
  const std::int64_t count = x.numel() / std::max<std::int64_t>(1, x.size(1));
  if (count < 2) {
    fail({.thing = "batch_norm",
          .wrong = "more than one value for each channel is expected in training",
          .got = to_string(x.shape())});
  }
  // Sums over the number of values, not means: shards may have different numbers of rows. Sums, and
  // their gradients, are whole before they are spread over the values again.
  const auto mean_of = [&](const Tensor& values) {
    return mul_scalar(operands::whole_sum(sum(values, dims, true)),
                      1.0 / static_cast<double>(count));
  };
  const Tensor mean = mean_of(x);
  const Tensor centred = sub(x, mean);
  const Tensor variance = mean_of(square(centred));
  const auto move = [&](const Tensor& running, const Tensor& now, double factor) {
    const NoGrad constant;
    if (running) {
      mul_scalar_(running, 1 - momentum);
      add_(running, view(detach(now), running.shape()), momentum * factor);
    }
  };
  move(running_mean, mean, 1);
  move(running_var, variance, static_cast<double>(count) / static_cast<double>(count - 1));
  return scale_channels(mul(centred, rsqrt(add_scalar(variance, eps))), weight, bias);
}

}  // namespace tessera::ops
