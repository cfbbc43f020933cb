// Images with other extents: average pooling and interpolation, which are linear along each dim
// with few terms.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>

#include "shared/kernels/separable.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :pooling_call;

namespace tessera::ops {
namespace {

using kernels::SparseMap;
using namespace pooling;

// Linear maps along each spatial dim

// Each gives the terms of the map of one spatial dim of `extent` elements, by
// terms_along(call, arguments, dim, extent, sink): sink.term(element, weight) for those of a
// result, then sink.end_result(). dims_of(arguments): the spatial dims that the arguments are for.
// The arguments of its gradient are the same and the extents of x.

/// Counts.
struct MapSize {
  std::int64_t results = 0;
  std::int64_t terms = 0;
  void term(std::int64_t, double) { ++terms; }
  void end_result() { ++results; }
};

/// Writes.
struct MapWriter {
  const SparseMap& map;
  std::int64_t results = 0;
  std::int64_t terms = 0;
  explicit MapWriter(const SparseMap& written) : map(written) { map.first[0] = 0; }
  void term(std::int64_t index, double weight) {
    map.index[terms] = index;
    map.weight[terms++] = weight;
  }
  void end_result() { map.first[++results] = terms; }
};

struct AveragePoolArgs {
  Dims kernel_size;
  Dims stride;
  Dims padding;
  bool ceil_mode;
  bool count_include_pad;
};
struct AveragePoolBackwardArgs {
  Dims kernel_size;
  Dims stride;
  Dims padding;
  bool ceil_mode;
  bool count_include_pad;
  Dims extents;
};

struct AdaptivePoolArgs {
  Dims output_size;
};
struct AdaptivePoolBackwardArgs {
  Dims output_size;
  Dims extents;
};

struct InterpolateArgs {
  Dims size;
  InterpolateMode mode;
  bool align_corners;
};
struct InterpolateBackwardArgs {
  Dims size;
  InterpolateMode mode;
  bool align_corners;
  Dims extents;
};

int dims_of(const AveragePoolArgs&) { return 2; }

template <class Sink>
void terms_along(const Call& call, const AveragePoolArgs& p, int dim, std::int64_t extent,
                 Sink& sink) {
  check_pooling(call, p);
  const std::int64_t count = windows_along(call, extent, p.kernel_size[dim], 1, p.stride[dim],
                                           p.padding[dim], p.ceil_mode);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * p.stride[dim] - p.padding[dim];
    const std::int64_t end = std::min(begin + p.kernel_size[dim], extent + p.padding[dim]);
    const std::int64_t first = std::max<std::int64_t>(begin, 0);
    const std::int64_t last = std::min(end, extent);
    const std::int64_t divisor = p.count_include_pad ? end - begin : last - first;
    for (std::int64_t k = first; k < last; ++k) {
      sink.term(k, 1.0 / static_cast<double>(divisor));
    }
    sink.end_result();
  }
}

/// The size that a map was asked for. Errors: negative, or so large that no map could be made.
std::int64_t checked_results(const Call& call, std::int64_t count, std::int64_t extent) {
  constexpr std::int64_t most = std::int64_t{1} << 28;
  if (count < 0 || count > most) {
    refuse(call, {.wrong = "the size is wrong",
                  .expected = "0 to 2^28",
                  .got = fmt::format("{} from {}", count, extent)});
  }
  return count;
}

int dims_of(const AdaptivePoolArgs& arguments) { return arguments.output_size.size(); }

template <class Sink>
void terms_along(const Call& call, const AdaptivePoolArgs& arguments, int dim, std::int64_t extent,
                 Sink& sink) {
  const std::int64_t count = checked_results(call, arguments.output_size[dim], extent);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = i * extent / count;
    const std::int64_t end = ((i + 1) * extent + count - 1) / count;
    for (std::int64_t k = begin; k < end; ++k) {
      sink.term(k, 1.0 / static_cast<double>(end - begin));
    }
    sink.end_result();
  }
}

int dims_of(const InterpolateArgs& arguments) { return arguments.size.size(); }

template <class Sink>
void terms_along(const Call& call, const InterpolateArgs& arguments, int dim, std::int64_t extent,
                 Sink& sink) {
  const std::int64_t count = checked_results(call, arguments.size[dim], extent);
  if (reflect::name_of_enumerator(arguments.mode).empty()) {
    refuse(call, {.wrong = "mode does not exist",
                  .expected = std::string(reflect::Enumerators<InterpolateMode>::joined),
                  .got = fmt::format("the number {}", static_cast<int>(arguments.mode))});
  }
  for (std::int64_t i = 0; i < count && extent > 0; ++i) {
    std::int64_t low = i * extent / count;
    double share = 0;  // of the next element
    if (arguments.mode == InterpolateMode::linear) {
      const auto at = static_cast<double>(i);
      const auto from = static_cast<double>(extent);
      const auto to = static_cast<double>(count);
      const double place = arguments.align_corners ? (count == 1 ? 0 : at * (from - 1) / (to - 1))
                                                   : std::max((at + 0.5) * from / to - 0.5, 0.0);
      low = std::min(static_cast<std::int64_t>(place), extent - 1);
      share = place - static_cast<double>(low);
    }
    sink.term(low, 1 - share);
    if (share != 0) {
      sink.term(std::min(low + 1, extent - 1), share);
    }
    sink.end_result();
  }
}

template <class A>
MapSize size_along(const Call& call, const A& arguments, int dim, std::int64_t extent) {
  MapSize size;
  terms_along(call, arguments, dim, extent, size);
  return size;
}

template <class A>
void infer(const Call& call, ResultShapes& out) {
  const auto arguments = call.args<A>();
  check_image(call, dims_of(arguments));
  Dims extents = spatial(call.in[0].shape());
  for (int d = 0; d < extents.size(); ++d) {
    const std::int64_t results = size_along(call, arguments, d, extents[d]).results;
    if (results < 1) {
      refuse(call, {.wrong = fmt::format("an extent of {} in {} is too small for one result",
                                         extents[d], to_string(call.in[0].shape()))});
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
template <bool transposed, class A>
void compute(Workspace& w, const Call& call, const A& arguments, const Dims& extents,
             std::span<const Tensor> out) {
  const Tensor sums = sums_for(w, out[0]);
  Tensor at = converted_operand(w, call.in[0], sums.dtype());
  for (int d = 0; d < extents.size(); ++d) {
    const MapSize size = size_along(call, arguments, d, extents[d]);
    Dims shape = at.shape();
    shape[d + 2] = transposed ? extents[d] : size.results;
    const Tensor next = d + 1 == extents.size() ? sums : temporary(w, shape, sums.dtype());
    const Workspace::Scope of_map(w);
    const SparseMap map(w, size.results, size.terms);
    if (w.counts()) {
      at = next;
      continue;
    }
    MapWriter writer(map);
    terms_along(call, arguments, d, extents[d], writer);
    if (next.numel() != 0 && sums.dtype() == DType::f64) {
      apply_map<transposed, double>(map, at, next, d);
    } else if (next.numel() != 0) {
      apply_map<transposed, float>(map, at, next, d);
    }
    at = next;
  }
  if (w.counts()) {
    return;
  }
  convert_into(out[0], sums);
}

/// Batch and channels.
void rule(const RuleContext& context, Strategies& strategies) {
  rules::same_dim(context, strategies, 0);
  rules::same_dim(context, strategies, 1);
  rules::linear(context, strategies);
}

/// An operator and its gradient, which is the transposed map; the gradient of that is the operator.
template <class A, class BackwardA>
struct LinearPair {
  static inline const Op* forward = nullptr;
  static inline const Op* transposed = nullptr;

  template <class All, std::size_t... I>
  static A first_of(const All& all, reflect::Indices<I...>) {
    return A{std::get<I>(all)...};
  }
  static A without_extents(const BackwardA& arguments) {
    return reflect::visit(arguments, [](const auto&... field) {
      return first_of(std::tie(field...), reflect::indices_of(reflect::FieldTypes<A>{}));
    });
  }

  static void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
    compute<false>(w, call, call.args<A>(), spatial(call.in[0].shape()), out);
  }
  static void backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
    const auto arguments = context.args<A>();
    out[0] = call_one(*transposed, {grads[0]}, reflect::visit(arguments, [&](const auto&... field) {
      return BackwardA{field..., spatial(context.in_shapes[0])};
    }));
  }

  static void backward_infer(const Call& call, ResultShapes& out) {
    const auto arguments = call.args<BackwardA>();
    const A settings = without_extents(arguments);
    check_image(call, dims_of(settings));
    if (arguments.extents.size() != dims_of(settings)) {
      refuse(call, {.wrong = "extents has the wrong number of dims",
                    .expected = fmt::format("{}", dims_of(settings)),
                    .got = to_string(arguments.extents)});
    }
    Dims expected = arguments.extents;
    for (int d = 0; d < expected.size(); ++d) {
      checked_results(call, arguments.extents[d], arguments.extents[d]);
      expected[d] = size_along(call, settings, d, arguments.extents[d]).results;
    }
    check_shape(call, 0, with_spatial(call.in[0].shape(), expected));
    out.push_back({with_spatial(call.in[0].shape(), arguments.extents), call.in[0].dtype()});
  }
  static void backward_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
    const auto arguments = call.args<BackwardA>();
    compute<true>(w, call, without_extents(arguments), arguments.extents, out);
  }
  static void backward_again(const BackwardContext& context, std::span<const Tensor> grads,
                             std::span<Tensor> out) {
    out[0] = call_one(*forward, {grads[0]}, without_extents(context.args<BackwardA>()));
  }

  static const Op& add(const std::string& name, const char* about) {
    forward = &register_op<A>({.schema = name + "(x)",
                               .infer = infer<A>,
                               .cpu = in_workspace<cpu>,
                               .workspace = workspace_of<cpu>,
                               .rule = rule,
                               .backward = backward,
                               .about = about});
    transposed = &register_op<BackwardA>({.schema = name + "_backward(dy)",
                                          .infer = backward_infer,
                                          .cpu = in_workspace<backward_cpu>,
                                          .workspace = workspace_of<backward_cpu>,
                                          .rule = rule,
                                          .backward = backward_again,
                                          .about = "The gradient of " + name + "."});
    return *forward;
  }
};

const Op& average_op = LinearPair<AveragePoolArgs, AveragePoolBackwardArgs>::add(
    "avg_pool2d", "The mean of each window of images.");
const Op& adaptive_op = LinearPair<AdaptivePoolArgs, AdaptivePoolBackwardArgs>::add(
    "adaptive_avg_pool2d",
    "The mean of windows that are spread evenly over each image; output_size windows.");
const Op& interpolate_op = LinearPair<InterpolateArgs, InterpolateBackwardArgs>::add(
    "interpolate", "Images of another size: the nearest element, or linear between neighbours.");

}  // namespace

Tensor avg_pool2d(const Tensor& x, const Pooling& settings, bool count_include_pad) {
  operands::given("avg_pool2d", "x", x);
  return of_batch(x, [&](const Tensor& images) {
    return call_one(average_op, {images},
                    AveragePoolArgs{.kernel_size = for_both_dims(settings.kernel_size),
                                    .stride = stride_of(settings),
                                    .padding = for_both_dims(settings.padding),
                                    .ceil_mode = settings.ceil_mode,
                                    .count_include_pad = count_include_pad});
  });
}

Tensor adaptive_avg_pool2d(const Tensor& x, const Dims& output_size) {
  operands::given("adaptive_avg_pool2d", "x", x);
  return of_batch(x, [&](const Tensor& images) {
    return call_one(adaptive_op, {images},
                    AdaptivePoolArgs{.output_size = for_both_dims(output_size)});
  });
}

Tensor interpolate(const Tensor& x, const Dims& size, InterpolateMode mode, bool align_corners) {
  return call_one(interpolate_op, {x},
                  InterpolateArgs{.size = size, .mode = mode, .align_corners = align_corners});
}

}  // namespace tessera::ops
