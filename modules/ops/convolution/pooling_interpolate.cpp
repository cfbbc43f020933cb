// Images with other extents: average pooling and interpolation, which are linear along each dim
// with few terms, and maximum pooling.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "convolution/kernels/convolution.hpp"
#include "shared/kernels/separable.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :index_call;
import :kernel_call;

namespace tessera::ops {
namespace {

using kernels::SparseMap;

/// [N, C, ...]: the extents behind the channels.
Dims spatial(const Dims& shape) {
  return shape.size() < 2 ? Dims() : Dims(shape.span().subspan(2));
}

Dims with_spatial(const Dims& shape, const Dims& extents) {
  Dims result{shape[0], shape[1]};
  for (const std::int64_t extent : extents) {
    result.push_back(extent);
  }
  return result;
}

void check_image(const Call& call, int spatial_dims) {
  const Tensor& x = call.in[0];
  operands::check_floating(call.op.name, x);
  if (x.dims() != spatial_dims + 2) {
    refuse(call, fmt::format("[N, C] and {} dims behind them are expected (got {})", spatial_dims,
                             to_string(x.shape())));
  }
}

// Linear maps along each spatial dim

/// The map of one spatial dim of `extent` elements, from a call's attributes.
using MapFunction = SparseMap (*)(const Call& call, int dim, std::int64_t extent);

void add_term(SparseMap& map, std::int64_t index, double weight) {
  map.index.push_back(index);
  map.weight.push_back(weight);
}

void end_result(SparseMap& map) {
  map.first.push_back(static_cast<std::int64_t>(map.index.size()));
}

struct PoolAttributes {
  Dims kernel;
  Dims stride;
  Dims padding;
  bool ceil_mode;
};

PoolAttributes read_pooling(const Call& call, AttributeReader& read) {
  PoolAttributes p{read.dims(), read.dims(), read.dims(), read.flag()};
  bool fits = p.kernel.size() == 2 && p.stride.size() == 2 && p.padding.size() == 2;
  for (int i = 0; fits && i < 2; ++i) {
    fits =
        p.kernel[i] > 0 && p.stride[i] > 0 && p.padding[i] >= 0 && p.padding[i] <= p.kernel[i] / 2;
  }
  if (!fits) {
    refuse(call, fmt::format("two positive numbers each are expected, and at most half a kernel of "
                             "padding (got kernel {}, stride {}, padding {})",
                             to_string(p.kernel), to_string(p.stride), to_string(p.padding)));
  }
  return p;
}

SparseMap average_map(const Call& call, int dim, std::int64_t extent) {
  AttributeReader read = call.read();
  const PoolAttributes p = read_pooling(call, read);
  const bool count_padding = read.flag();
  const std::int64_t count =
      windows_along(call, extent, p.kernel[dim], 1, p.stride[dim], p.padding[dim], p.ceil_mode);
  SparseMap map;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * p.stride[dim] - p.padding[dim];
    const std::int64_t end = std::min(begin + p.kernel[dim], extent + p.padding[dim]);
    const std::int64_t first = std::max<std::int64_t>(begin, 0);
    const std::int64_t last = std::min(end, extent);
    const std::int64_t divisor = count_padding ? end - begin : last - first;
    for (std::int64_t k = first; k < last; ++k) {
      add_term(map, k, 1.0 / static_cast<double>(divisor));
    }
    end_result(map);
  }
  return map;
}

/// The size that a map was asked for. Errors: so large that a map of it could not be made.
std::int64_t checked_results(const Call& call, std::int64_t count, std::int64_t extent) {
  constexpr std::int64_t most = std::int64_t{1} << 28;
  if (count > most) {
    refuse(call, fmt::format("the size is too large (expected at most 2^28, got {} from {})", count,
                             extent));
  }
  return count;
}

SparseMap adaptive_map(const Call& call, int dim, std::int64_t extent) {
  const std::int64_t count = checked_results(call, call.read().dims()[dim], extent);
  SparseMap map;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * extent / count;
    const std::int64_t end = ((i + 1) * extent + count - 1) / count;
    for (std::int64_t k = begin; k < end; ++k) {
      add_term(map, k, 1.0 / static_cast<double>(end - begin));
    }
    end_result(map);
  }
  return map;
}

SparseMap interpolation_map(const Call& call, int dim, std::int64_t extent) {
  AttributeReader read = call.read();
  const std::int64_t count = checked_results(call, read.dims()[dim], extent);
  const auto mode = static_cast<InterpolateMode>(read.integer());
  const bool align_corners = read.flag();
  SparseMap map;
  for (std::int64_t i = 0; i < count && extent > 0; ++i) {
    std::int64_t low = i * extent / count;
    double share = 0;  // of the next element
    if (mode == InterpolateMode::linear) {
      const auto at = static_cast<double>(i);
      const auto from = static_cast<double>(extent);
      const auto to = static_cast<double>(count);
      const double place = align_corners ? (count == 1 ? 0 : at * (from - 1) / (to - 1))
                                         : std::max((at + 0.5) * from / to - 0.5, 0.0);
      low = std::min(static_cast<std::int64_t>(place), extent - 1);
      share = place - static_cast<double>(low);
    }
    add_term(map, low, 1 - share);
    if (share != 0) {
      add_term(map, std::min(low + 1, extent - 1), share);
    }
    end_result(map);
  }
  return map;
}

/// The dims that the attributes speak of.
int average_dims(const Call&) { return 2; }
int asked_dims(const Call& call) { return call.read().dims().size(); }

template <MapFunction map_of, int (*dims_of)(const Call&)>
void infer(const Call& call, ResultShapes& out) {
  check_image(call, dims_of(call));
  Dims extents = spatial(call.in[0].shape());
  for (int d = 0; d < extents.size(); ++d) {
    const std::int64_t results = map_of(call, d, extents[d]).results();
    if (results < 1) {
      refuse(call, fmt::format("an extent of {} in {} is too small for one result", extents[d],
                               to_string(call.in[0].shape())));
    }
    extents[d] = results;
  }
  out.push_back({with_spatial(call.in[0].shape(), extents), call.in[0].dtype()});
}

/// x as a map's operand around spatial dim `d`.
template <bool transposed, class T>
void apply_map(const SparseMap& map, const Tensor& from, const Tensor& to, int d) {
  const Dims& shape = transposed ? to.shape() : from.shape();
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  for (int i = 0; i < shape.size(); ++i) {
    (i < d + 2 ? outer : inner) *= i == d + 2 ? 1 : shape[i];
  }
  if constexpr (transposed) {
    kernels::apply_transposed(map, outer, shape[d + 2], inner, pointer<T>(from), pointer<T>(to));
  } else {
    kernels::apply(map, outer, shape[d + 2], inner, pointer<T>(from), pointer<T>(to));
  }
}

/// The maps one dim after the other, in the type of sums. `extents`: of what the maps are made for.
template <MapFunction map_of, bool transposed>
void compute(const Call& call, std::span<Tensor> out) {
  const Tensor sums = sums_for(out[0]);
  const Dims extents = spatial((transposed ? out[0] : call.in[0]).shape());
  Tensor at = converted_operand(call.in[0], sums.dtype());
  for (int d = 0; d < extents.size(); ++d) {
    const SparseMap map = map_of(call, d, extents[d]);
    Dims shape = at.shape();
    shape[d + 2] = transposed ? extents[d] : map.results();
    const Tensor next = d + 1 == extents.size() ? sums : empty(shape, sums.dtype());
    if (next.numel() != 0 && sums.dtype() == DType::f64) {
      apply_map<transposed, double>(map, at, next, d);
    } else if (next.numel() != 0) {
      apply_map<transposed, float>(map, at, next, d);
    }
    at = next;
  }
  convert_into(out[0], sums);
}

/// Batch and channels.
void rule(const RuleContext& context, Strategies& strategies) {
  rules::same_dim(context, strategies, 0);
  rules::same_dim(context, strategies, 1);
  rules::linear(context, strategies);
}

/// A gradient's attributes are the operator's, and behind them the extents of x.
Dims whole_extents(const Call& call) {
  const auto fixed = call.attributes.fixed();
  const auto count = static_cast<std::size_t>(call.in[0].dims() - 2);
  return Dims(fixed.subspan(fixed.size() - count));
}

template <MapFunction map_of>
void grad_infer(const Call& call, ResultShapes& out) {
  const Dims extents = whole_extents(call);
  Dims expected = extents;
  for (int d = 0; d < extents.size(); ++d) {
    expected[d] = map_of(call, d, extents[d]).results();
  }
  check_shape(call, 0, with_spatial(call.in[0].shape(), expected));
  out.push_back({with_spatial(call.in[0].shape(), extents), call.in[0].dtype()});
}

/// An operator and its gradient, which is the transposed map; the gradient of that is the operator.
template <MapFunction map_of, int (*dims_of)(const Call&)>
struct LinearPair {
  static inline const Op* forward = nullptr;
  static inline const Op* transposed = nullptr;

  static void backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
    Attributes attributes = context.attributes;
    out[0] = call_one(*transposed, {grads[0]}, attributes.add(spatial(context.in_shapes[0])));
  }
  static void backward_again(const BackwardContext& context, std::span<const Tensor> grads,
                             std::span<Tensor> out) {
    const auto fixed = context.attributes.fixed();
    Attributes attributes;
    for (std::size_t i = 0; i + static_cast<std::size_t>(grads[0].dims() - 1) < fixed.size(); ++i) {
      attributes.add(fixed[i]);
    }
    out[0] = call_one(*forward, {grads[0]}, attributes);
  }

  static const Op& add(const char* name, const std::string& attributes, const char* about) {
    forward = &register_op({.schema = std::string(name) + "(x; " + attributes + ")",
                            .infer = infer<map_of, dims_of>,
                            .cpu = compute<map_of, false>,
                            .rule = rule,
                            .backward = backward,
                            .about = about});
    transposed = &register_op(
        {.schema = std::string(name) + "_backward(dy; " + attributes + ", extents: dims)",
         .infer = grad_infer<map_of>,
         .cpu = compute<map_of, true>,
         .rule = rule,
         .backward = backward_again,
         .about = std::string("The gradient of ") + name + "."});
    return *forward;
  }
};

const Op& average_op = LinearPair<average_map, average_dims>::add(
    "avg_pool2d",
    "kernel_size: dims, stride: dims, padding: dims, ceil_mode: bool, count_include_pad: bool",
    "The mean of each window of images.");
const Op& adaptive_op = LinearPair<adaptive_map, asked_dims>::add(
    "adaptive_avg_pool2d", "output_size: dims",
    "The mean of windows that lie evenly over images, as many as asked for.");
const Op& interpolate_op = LinearPair<interpolation_map, asked_dims>::add(
    "interpolate", "size: dims, mode: int, align_corners: bool",
    "Images of another size: the nearest element (mode 0), or linear between neighbours (1).");

// max_pool2d

kernels::Windows max_windows(const Call& call, const Dims& x) {
  AttributeReader read = call.read();
  const PoolAttributes p = read_pooling(call, read);
  const Dims dilation = read.dims();
  kernels::Windows w;
  w.channels = x[1];
  for (int i = 0; i < 2; ++i) {
    w.in[i] = x[i + 2];
    w.kernel[i] = p.kernel[i];
    w.stride[i] = p.stride[i];
    w.padding[i] = p.padding[i];
    w.dilation[i] = dilation[i];
    w.out[i] = windows_along(call, w.in[i], w.kernel[i], w.dilation[i], w.stride[i], w.padding[i],
                             p.ceil_mode);
  }
  return w;
}

void max_infer(const Call& call, ResultShapes& out) {
  check_image(call, 2);
  const Dims& x = call.in[0].shape();
  const kernels::Windows w = max_windows(call, x);
  if (w.out[0] < 1 || w.out[1] < 1) {
    refuse(call, fmt::format("the kernel does not fit {}", to_string(x)));
  }
  const Dims shape = with_spatial(x, {w.out[0], w.out[1]});
  out.push_back({shape, call.in[0].dtype()});
  out.push_back({shape, DType::i64});  // where in its image each maximum stands
}

void max_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = contiguous_operand(call.in[0]);
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    kernels::max_pool(max_windows(call, x.shape()), x.shape()[0], pointer<T>(x), pointer<T>(out[0]),
                      pointer<std::int64_t>(out[1]));
  });
}

void max_rule(const RuleContext& context, Strategies& strategies) {
  rules::same_dim(context, strategies, 0);
  rules::same_dim(context, strategies, 1);
}

/// [N, C, ...] as [N, C, n].
Tensor planes(const Tensor& x) { return reshape(x, {x.size(0), x.size(1), -1}); }

const Op& max_op = register_op({
    .schema = "max_pool2d(x; kernel_size: dims, stride: dims, padding: dims, ceil_mode: bool, "
              "dilation: dims)",
    .infer = max_infer,
    .cpu = max_cpu,
    .rule = max_rule,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const Dims& x = context.in_shapes[0];
          const Dims flat{x[0], x[1], x[2] * x[3]};
          out[0] = reshape(
              indexing::gather_backward(planes(grads[0]), planes(context.out[1]), 2, flat), x);
        },
    .saves_outputs = 0b10,
    .about = "The largest element of each window of images, and where it stands.",
});

Attributes pooling_attributes(const Pooling& p) {
  return Attributes()
      .add(for_both_dims(p.kernel_size))
      .add(for_both_dims(p.stride.empty() ? p.kernel_size : p.stride))
      .add(for_both_dims(p.padding))
      .add(p.ceil_mode);
}

/// Calls f with [1, C, H, W] where x is [C, H, W].
template <class F>
Tensor of_batch(const Tensor& x, F f) {
  return x.dims() == 3 ? squeeze(f(unsqueeze(x, 0)), 0) : f(x);
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pooling& settings, const Dims& dilation) {
  operands::given("max_pool2d", "x", x);
  return of_batch(x, [&](const Tensor& images) {
    return call_one(max_op, {images}, pooling_attributes(settings).add(for_both_dims(dilation)));
  });
}

Tensor avg_pool2d(const Tensor& x, const Pooling& settings, bool count_include_pad) {
  operands::given("avg_pool2d", "x", x);
  return of_batch(x, [&](const Tensor& images) {
    return call_one(average_op, {images}, pooling_attributes(settings).add(count_include_pad));
  });
}

Tensor adaptive_avg_pool2d(const Tensor& x, const Dims& output_size) {
  operands::given("adaptive_avg_pool2d", "x", x);
  return of_batch(x, [&](const Tensor& images) {
    return call_one(adaptive_op, {images}, Attributes().add(for_both_dims(output_size)));
  });
}

Tensor interpolate(const Tensor& x, const Dims& size, InterpolateMode mode, bool align_corners) {
  return call_one(interpolate_op, {x},
                  Attributes().add(size).add(static_cast<int>(mode)).add(align_corners));
}

}  // namespace tessera::ops
