// The largest and smallest over dims, and where they are.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "reduce/kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :reduce_call;

namespace tessera::ops {
namespace {

using operands::ReducedDim;
using operands::ReducedDims;

void check_elements(const Op& op, const Dims& shape, const Dims& dims) {
  for (const std::int64_t d : dims) {
    if (shape[static_cast<int>(d)] == 0) {
      fail({.thing = op.name,
            .wrong = fmt::format("dim {} has no elements", d),
            .got = fmt::format("shape {}", to_string(shape))});
    }
  }
}

struct ExtremumArgs {
  Dims dims;
  bool keepdim;
  bool across_ranks;
  SpecArgument whole{};  // of a local call: the Spec of the x that its x is part of
};

template <bool magnitudes>
void infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  if (magnitudes) {
    operands::check_floating(call.op.name, x);
  }
  const ReducedDims a = operands::reduced_dims(call);
  const SpecArgument whole = call.args<ExtremumArgs>().whole;  // whose shards may be empty
  check_elements(call.op, whole ? whole->shape : x.shape(), a.dims);
  out.push_back({operands::reduced_shape(x.shape(), a.dims, a.keepdim), x.dtype()});
}

template <kernels::ReduceOp op>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const ReducedDims a = operands::reduced_dims(call);
  const operands::ReducedOperand r = reduced_operand(w, call.in[0], a.dims);
  kernels::reduce(w, op, r.x.dtype(), {r.outer, r.reduced, r.inner}, pointer<void>(w, r.x),
                  pointer<void>(w, out[0]));
}

/// Reduces magnitudes.
template <kernels::ReduceOp op>
void magnitude_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const operands::ReducedOperand r =
      reduced_operand(w, call.in[0], operands::reduced_dims(call).dims);
  kernels::norm(w, r.x.dtype(), {r.outer, r.reduced, r.inner}, pointer<void>(w, r.x),
                op == kernels::ReduceOp::amax ? infinity : -infinity, pointer<void>(w, out[0]));
}

/// The maximum of maxima: shards of a reduced dim give a partial result, as far as every rank has
/// elements; maxima of ranks pass through, but not those whose magnitudes are reduced. With
/// across_ranks the ranks reduce them.
template <tessera::ReduceOp op, bool magnitudes>
void rule(const RuleContext& context, Strategies& strategies) {
  const Dims& shape = context.call.in[0].shape();
  const ReducedDims a = operands::reduced_dims(context.call);
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
  if (context.call.args<ExtremumArgs>().across_ranks) {
    const auto reduced = [&](Placement x) {
      strategies.push_back(rules::strategy({x}, {Replicate()}));
      strategies.back().reductions = {InnerReduction{.op = op}};
    };
    for (const std::int64_t dim : a.dims) {
      reduced(Shard(static_cast<int>(dim)));
    }
    if (!magnitudes) {
      reduced(Partial(op));
    }
    return;
  }
  for (const std::int64_t dim : a.dims) {
    const int d = static_cast<int>(dim);
    if (shape[d] % context.shards_of(0, d) == 0) {
      strategies.push_back(rules::strategy({Shard(d)}, {Partial(op)}));
    }
  }
  if (!magnitudes) {
    strategies.push_back(rules::strategy({Partial(op)}, {Partial(op)}));
  }
}

/// The extremum of the ranks' extremes; that of nothing is the least extreme number of the type, to
/// which cast() brings an infinity.
template <tessera::ReduceOp op>
void composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  const Tensor& x = call.in[0];
  const ReducedDims a = operands::reduced_dims(call);
  const Dims shape = operands::reduced_shape(x.shape(), a.dims, a.keepdim);
  const bool truth = x.dtype() == DType::boolean;
  const DType type = truth ? DType::u8 : x.dtype();
  const double most = truth ? 1 : std::numeric_limits<double>::infinity();
  const double least = op == ReduceOp::min ? most : truth ? 0 : -most;
  const Tensor part = x.numel() == 0 ? cast(full(shape, least, DType::f64, x.device()), type)
                                     : call_one(call.op, {cast(x, type)}, call.attributes);
  out.push_back(cast(reduce(part, op), x.dtype()));
}

/// Equal extrema share the gradient equally.
template <bool magnitudes>
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensor x = magnitudes ? abs(context.in[0]) : context.in[0];
  const ReducedDims a = operands::reduced_dims(context);
  const Tensor chosen = eq(x, operands::spread(context.out[0], a.dims, a.keepdim, x.shape()));
  const Tensor weights = cast(chosen, x.dtype());
  Tensor count = sum(weights, a.dims, a.keepdim);
  Tensor g = grads[0];
  if (context.args<ExtremumArgs>().across_ranks) {
    count = operands::whole_sum(count);
    g = operands::whole_sum(g);
  }
  const Tensor share = div(g, count);
  out[0] = a.dims.empty() ? grads[0]
                          : mul(operands::spread(share, a.dims, a.keepdim, x.shape()), weights);
  if (magnitudes) {
    out[0] = mul(out[0], sign(context.in[0]));
  }
}

struct Position {
  Dims dim;  // none for a tensor without dims
  bool keepdim;
};

Position read_position(const Op& op, const ReducedDim& args, int count) {
  return {operands::sorted_dims(op.name.c_str(), {args.dim}, count), args.keepdim};
}

Position position(const Call& call) {
  return read_position(call.op, call.args<ReducedDim>(), call.in[0].dims());
}

Dims position_shape(const Call& call) {
  const Position p = position(call);
  check_elements(call.op, call.in[0].shape(), p.dim);
  return operands::reduced_shape(call.in[0].shape(), p.dim, p.keepdim);
}

void find(Workspace& w, bool largest, const operands::ReducedOperand& r, std::int64_t* positions) {
  const auto type = r.x.dtype();
  const kernels::ReduceShape shape{r.outer, r.reduced, r.inner};
  largest ? kernels::argmax(w, type, shape, pointer<void>(w, r.x), positions)
          : kernels::argmin(w, type, shape, pointer<void>(w, r.x), positions);
}

void arg_infer(const Call& call, ResultShapes& out) {
  out.push_back({position_shape(call), DType::i64});
}

template <bool largest>
void arg_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  find(w, largest, reduced_operand(w, call.in[0], position(call).dim),
       pointer<std::int64_t>(w, out[0]));
}

/// A shard knows positions within itself only.
void arg_rule(const RuleContext& context, Strategies& strategies) {
  const Position p = position(context.call);
  rules::kept_dims(context, strategies, p.dim, p.keepdim);
}

void found_infer(const Call& call, ResultShapes& out) {
  const Dims shape = position_shape(call);
  out.push_back({shape, call.in[0].dtype()});
  out.push_back({shape, DType::i64});
}

template <bool largest>
void found_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const operands::ReducedOperand r = reduced_operand(w, call.in[0], position(call).dim);
  auto* const positions = pointer<std::int64_t>(w, out[1]);
  find(w, largest, r, positions);
  if (w.counts()) {
    return;
  }
  const std::size_t size = size_of(r.x.dtype());
  const auto* from = static_cast<const std::byte*>(pointer<void>(w, r.x));
  auto* to = static_cast<std::byte*>(pointer<void>(w, out[0]));
  for (std::int64_t i = 0; i < r.outer * r.inner; ++i) {
    const std::int64_t at = (i / r.inner * r.reduced + positions[i]) * r.inner + i % r.inner;
    std::memcpy(to + static_cast<std::size_t>(i) * size, from + static_cast<std::size_t>(at) * size,
                size);
  }
}

/// Back to where the values came from.
void found_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  const Position p = read_position(context.op, context.args<ReducedDim>(), x.dims());
  if (!grads[0] || p.dim.empty()) {
    out[0] = grads[0];
    return;
  }
  const auto kept = [&](const Tensor& t) { return p.keepdim ? t : unsqueeze(t, p.dim[0]); };
  out[0] = scatter_add(zeros_like(x), kept(context.out[1]), kept(grads[0]), p.dim[0]);
}

Attributes localize(const LocalContext& context) {
  return with_whole<ExtremumArgs>(context, context.in[0]);
}

template <WorkspaceKernel cpu, tessera::ReduceOp partial, bool magnitudes>
const Op& extremum(const char* schema, const char* about) {
  return register_op<ExtremumArgs>({.schema = schema,
                                    .infer = infer<magnitudes>,
                                    .cpu = in_workspace<cpu>,
                                    .workspace = workspace_of<cpu>,
                                    .rule = rule<partial, magnitudes>,
                                    .localize = localize,
                                    .composed = composed<partial>,
                                    .backward = backward<magnitudes>,
                                    .saves_inputs = saves_all,
                                    .saves_outputs = saves_all,
                                    .about = about});
}

Tensor call_extremum(const Op& op, const Tensor& x, const Dims& dims, bool keepdim,
                     bool across_ranks) {
  operands::given(op.name, "x", x);
  const Dims sorted = operands::sorted_dims(op.name.c_str(), dims, x.dims());
  return call_one(op, {x}, ExtremumArgs{sorted, keepdim, across_ranks});
}

const Op& amax_op = extremum<cpu<kernels::ReduceOp::amax>, ReduceOp::max, false>(
    "amax(x)", "The largest element over dims (none: all).");
const Op& amin_op = extremum<cpu<kernels::ReduceOp::amin>, ReduceOp::min, false>(
    "amin(x)", "The smallest element over dims (none: all).");
const Op& amax_magnitude_op = extremum<magnitude_cpu<kernels::ReduceOp::amax>, ReduceOp::max, true>(
    "amax_magnitude(x)", "The largest magnitude over dims (none: all).");
const Op& amin_magnitude_op = extremum<magnitude_cpu<kernels::ReduceOp::amin>, ReduceOp::min, true>(
    "amin_magnitude(x)", "The smallest magnitude over dims (none: all).");

template <WorkspaceKernel cpu>
const Op& arg_op(const char* schema, const char* about) {
  return register_op<ReducedDim>({.schema = schema,
                                  .infer = arg_infer,
                                  .cpu = in_workspace<cpu>,
                                  .workspace = workspace_of<cpu>,
                                  .rule = arg_rule,
                                  .about = about});
}

const Op& argmax_op = arg_op<arg_cpu<true>>(
    "argmax(x)", "The first position of the largest element along dim (i64).");
const Op& argmin_op = arg_op<arg_cpu<false>>(
    "argmin(x)", "The first position of the smallest element along dim (i64).");

template <WorkspaceKernel cpu>
const Op& found_op(const char* schema, const char* about) {
  return register_op<ReducedDim>({.schema = schema,
                                  .infer = found_infer,
                                  .cpu = in_workspace<cpu>,
                                  .workspace = workspace_of<cpu>,
                                  .rule = arg_rule,
                                  .backward = found_backward,
                                  .saves_inputs = saves_all,
                                  .saves_outputs = 0b10,
                                  .about = about});
}

const Op& max_op =
    found_op<found_cpu<true>>("max(x)", "The largest element along dim and its first position.");
const Op& min_op =
    found_op<found_cpu<false>>("min(x)", "The smallest element along dim and its first position.");

Attributes along(const Op& op, const Tensor& x, std::int64_t dim, bool keepdim) {
  operands::given(op.name, "x", x);
  return ReducedDim{operands::front_dim(op.name.c_str(), dim, x.dims()), keepdim};
}

/// argmax or argmin. Over ranks as the first of a topk of 1, in which NaN is the largest element:
/// for argmin it must be the smallest.
Tensor position_of(const Op& op, bool largest, const Tensor& x, std::optional<std::int64_t> dim,
                   bool keepdim, bool across_ranks) {
  operands::given(op.name, "x", x);
  if (!dim) {
    const Tensor first = position_of(op, largest, reshape(x, {-1}), 0, false, across_ranks);
    return keepdim ? reshape(first, Dims::filled(x.dims(), 1)) : first;
  }
  if (!across_ranks || !x.is_distributed() || x.dims() == 0) {
    return call_one(op, {x}, along(op, x, *dim, keepdim));
  }
  const bool turned = !largest && is_floating(x.dtype());
  const NoGrad constant;
  const Tensor found = topk(turned ? neg(x) : x, 1, *dim, largest || turned, true).indices;
  return keepdim ? found : squeeze(found, *dim);
}

ValuesAndIndices call_found(const Op& op, const Tensor& x, std::int64_t dim, bool keepdim) {
  Tensors out = call(op, {x}, along(op, x, dim, keepdim));
  return {std::move(out[0]), std::move(out[1])};
}

}  // namespace

Tensor amax(const Tensor& x, const Dims& dims, bool keepdim, bool across_ranks) {
  return call_extremum(amax_op, x, dims, keepdim, across_ranks);
}

Tensor amin(const Tensor& x, const Dims& dims, bool keepdim, bool across_ranks) {
  return call_extremum(amin_op, x, dims, keepdim, across_ranks);
}

Tensor reductions::extreme_magnitude(bool largest, const Tensor& x, const Dims& dims, bool keepdim,
                                     bool across_ranks) {
  return call_extremum(largest ? amax_magnitude_op : amin_magnitude_op, x, dims, keepdim,
                       across_ranks);
}

Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim, bool across_ranks) {
  return position_of(argmax_op, true, x, dim, keepdim, across_ranks);
}

Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim, bool across_ranks) {
  return position_of(argmin_op, false, x, dim, keepdim, across_ranks);
}

ValuesAndIndices max(const Tensor& x, std::int64_t dim, bool keepdim) {
  return call_found(max_op, x, dim, keepdim);
}

ValuesAndIndices min(const Tensor& x, std::int64_t dim, bool keepdim) {
  return call_found(min_op, x, dim, keepdim);
}

}  // namespace tessera::ops
