// The largest and smallest over dims, and where the largest is.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct Arguments {
  Dims dims;  // sorted
  bool keepdim;
};

Arguments read_arguments(const Op& op, AttributeReader read, int count) {
  const Dims dims = operands::sorted_dims(op.name.c_str(), read.dims(), count);
  return {dims, read.flag()};
}

void check_elements(const Op& op, const Dims& shape, const Dims& dims) {
  for (const std::int64_t d : dims) {
    if (shape[static_cast<int>(d)] == 0) {
      fail(fmt::format("{}: nothing to choose from along dim {} (got shape {})", op.name, d,
                       to_string(shape)));
    }
  }
}

void infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  const Arguments a = read_arguments(call.op, call.read(), x.dims());
  check_elements(call.op, x.shape(), a.dims);
  out.push_back({operands::reduced_shape(x.shape(), a.dims, a.keepdim), x.dtype()});
}

template <kernels::ReduceOp op>
void cpu(const Call& call, std::span<Tensor> out) {
  const Arguments a = read_arguments(call.op, call.read(), call.in[0].dims());
  const operands::ReducedOperand r = operands::reduced_operand(call.in[0], a.dims);
  kernels::reduce(op, static_cast<kernels::DType>(r.x.dtype()), {r.outer, r.reduced, r.inner},
                  r.x.raw_data(), out[0].raw_data());
}

/// The maximum of maxima: shards of a reduced dim give a partial result, as far as every rank has
/// elements; maxima of ranks pass through.
template <tessera::ReduceOp op>
void rule(const RuleContext& context, Strategies& strategies) {
  const Dims& shape = context.call.in[0].shape();
  const Arguments a = read_arguments(context.call.op, context.call.read(), shape.size());
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
  for (const std::int64_t dim : a.dims) {
    const int d = static_cast<int>(dim);
    if (shape[d] % context.shards_of(0, d) == 0) {
      strategies.push_back(rules::strategy({Shard(d)}, {Partial(op)}));
    }
  }
  strategies.push_back(rules::strategy({Partial(op)}, {Partial(op)}));
}

/// Equal extrema share the gradient equally.
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  const Arguments a = read_arguments(context.op, context.read(), x.dims());
  const Tensor chosen = eq(x, operands::spread(context.out[0], a.dims, a.keepdim, x.shape()));
  const Tensor weights = cast(chosen, x.dtype());
  const Tensor share = div(grads[0], sum(weights, a.dims, a.keepdim));
  out[0] = a.dims.empty() ? grads[0]
                          : mul(operands::spread(share, a.dims, a.keepdim, x.shape()), weights);
}

struct Position {
  Dims dim;  // none for a tensor without dims
  bool keepdim;
};

Position read_position(AttributeReader read, int count) {
  return {operands::sorted_dims("argmax", {read.integer()}, count), read.flag()};
}

void argmax_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  const Position p = read_position(call.read(), x.dims());
  check_elements(call.op, x.shape(), p.dim);
  out.push_back({operands::reduced_shape(x.shape(), p.dim, p.keepdim), DType::i64});
}

void argmax_cpu(const Call& call, std::span<Tensor> out) {
  const Position p = read_position(call.read(), call.in[0].dims());
  if (p.dim.empty()) {
    *out[0].data<std::int64_t>() = 0;
    return;
  }
  const operands::ReducedOperand r = operands::reduced_operand(call.in[0], p.dim);
  kernels::argmax(static_cast<kernels::DType>(r.x.dtype()), {r.outer, r.reduced, r.inner},
                  r.x.raw_data(), out[0].data<std::int64_t>());
}

/// A shard knows positions within itself only.
void argmax_rule(const RuleContext& context, Strategies& strategies) {
  const Position p = read_position(context.call.read(), context.call.in[0].dims());
  rules::kept_dims(context, strategies, p.dim, p.keepdim);
}

const Op& amax_op = register_op({.schema = "amax(x; dims: dims, keepdim: bool)",
                                 .infer = infer,
                                 .cpu = cpu<kernels::ReduceOp::amax>,
                                 .rule = rule<tessera::ReduceOp::max>,
                                 .backward = backward,
                                 .saves_inputs = saves_all,
                                 .saves_outputs = saves_all,
                                 .about = "The largest over dims (none: all)."});

const Op& amin_op = register_op({.schema = "amin(x; dims: dims, keepdim: bool)",
                                 .infer = infer,
                                 .cpu = cpu<kernels::ReduceOp::amin>,
                                 .rule = rule<tessera::ReduceOp::min>,
                                 .backward = backward,
                                 .saves_inputs = saves_all,
                                 .saves_outputs = saves_all,
                                 .about = "The smallest over dims (none: all)."});

const Op& argmax_op = register_op({.schema = "argmax(x; dim: int, keepdim: bool)",
                                   .infer = argmax_infer,
                                   .cpu = argmax_cpu,
                                   .rule = argmax_rule,
                                   .about = "The first position of the largest along dim (i64)."});

Tensor call_reduction(const Op& op, const Tensor& x, const Dims& dims, bool keepdim) {
  const Dims sorted = operands::sorted_dims(op.name.c_str(), dims, x.dims());
  return call_one(op, {x}, Attributes().add(sorted).add(keepdim));
}

}  // namespace

Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) {
  return call_reduction(amax_op, x, dims, keepdim);
}

Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) {
  return call_reduction(amin_op, x, dims, keepdim);
}

Tensor argmax(const Tensor& x, std::int64_t dim, bool keepdim) {
  return call_one(argmax_op, {x},
                  Attributes().add(operands::front_dim("argmax", dim, x.dims())).add(keepdim));
}

}  // namespace tessera::ops
