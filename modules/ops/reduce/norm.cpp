// Lengths of tensors: norm over dims; vector_norm and squared_norm of all elements. Shards give
// terms: of a norm, the norms of their parts.
module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>

#include "pointwise/kernels/pointwise.hpp"
#include "reduce/kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :reduce_call;

namespace tessera::ops {
namespace {

struct WholeNormArgs {
  double p;
};
struct NormArgs {
  Dims dims;
  bool keepdim;
  double p;
};

using operands::ReducedDims;
using rules::strategy;

double sum_of_squares(Workspace& w, const Tensor& operand) {
  const Tensor x = contiguous_operand(w, operand);
  return kernels::sum_of_squares(w, x.dtype(), x.numel(), pointer<void>(w, x));
}

/// The norms of shards add up to the whole one: a count, or a sum of magnitudes.
bool is_sum(double p) { return p == 0 || p == 1; }

/// Norms of order p of an operand whose `dims` are reduced: terms where these are sharded, and
/// where the operand is terms of such norms itself, as (sum (sum |x|^p)^(p/p))^(1/p) is their norm.
void norm_terms(Strategies& strategies, const Dims& dims, double p) {
  if (!is_sum(p) && !has_norm_partial(p)) {
    return;
  }
  for (const std::int64_t d : dims) {
    strategies.push_back(strategy({Shard(static_cast<int>(d))}, {NormPartial(p)}));
  }
  if (!is_sum(p)) {
    strategies.push_back(strategy({NormPartial(p)}, {NormPartial(p)}));
  }
}

// whole_norm

void whole_infer(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void whole_cpu(const Call& call, std::span<Tensor> out) { copy_into(out[0], call.in[0]); }

void whole_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  const double p = context.call.args<WholeNormArgs>().p;
  if (has_norm_partial(p)) {
    strategies.push_back(strategy({NormPartial(p)}, {Replicate()}));
    strategies.back().reductions = {InnerReduction{.op = ReduceOp::sum}};
  }
}

void whole_composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  const double p = call.args<WholeNormArgs>().p;
  const Tensor& x = call.in[0];
  const Tensor wide = abs(cast(x, DType::f64));
  const Tensor sum = reduce(pow_scalar(wide, p), ReduceOp::sum);
  out.push_back(cast(pow_scalar(sum, 1 / p), x.dtype()));
}

/// The value is the same in another layout, so dy passes; what the norms were made of needs all of
/// it.
void whole_backward(const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
  out[0] = operands::whole_sum(grads[0]);
}

const Op& whole_op =
    register_op<WholeNormArgs>({.schema = "whole_norm(x)",
                                .infer = whole_infer,
                                .cpu = whole_cpu,
                                .rule = whole_rule,
                                .composed = whole_composed,
                                .backward = whole_backward,
                                .about = "The norm of order p of the whole tensor, from the norms "
                                         "of the ranks' parts; used by the gradients of norms."});

// norm

void norm_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  operands::check_floating(call.op.name, x);
  const ReducedDims a = operands::reduced_dims(call);
  out.push_back({operands::reduced_shape(x.shape(), a.dims, a.keepdim), x.dtype()});
}

void norm_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const double p = call.args<NormArgs>().p;
  const operands::ReducedOperand r =
      reduced_operand(w, call.in[0], operands::reduced_dims(call).dims);
  kernels::norm(w, r.x.dtype(), {r.outer, r.reduced, r.inner}, pointer<void>(w, r.x), p,
                pointer<void>(w, out[0]));
}

void norm_rule(const RuleContext& context, Strategies& strategies) {
  const ReducedDims a = operands::reduced_dims(context.call);
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
  norm_terms(strategies, a.dims, context.call.args<NormArgs>().p);
}

/// x / y, 0 where y is 0.
Tensor quotient(const Tensor& x, const Tensor& y) {
  const Tensor none = eq(y, zeros_like(y));
  return masked_fill(div(x, masked_fill(y, none, 1)), none, 0);
}

/// sign(x) (|x| / norm)^(p-1); 0 for a norm of 0.
void norm_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const ReducedDims a = operands::reduced_dims(context);
  const double p = context.args<NormArgs>().p;
  if (is_sum(p)) {
    const Tensor& of = context.in[0];
    out[0] = p == 0 ? zeros_like(of)
                    : mul(operands::spread(grads[0], a.dims, a.keepdim, of.shape()), sign(of));
    return;
  }
  const Tensor x = operands::whole_norm(context.in[0], p);
  const Tensor y = operands::whole_norm(context.out[0], p);
  const auto spread = [&](const Tensor& t) {
    return operands::spread(t, a.dims, a.keepdim, x.shape());
  };
  if (p == 2) {
    out[0] = mul(x, spread(quotient(grads[0], y)));
    return;
  }
  const Tensor share = quotient(abs(x), spread(y));
  const Tensor zero = eq(x, zeros_like(x));
  const Tensor slope = masked_fill(pow_scalar(masked_fill(share, zero, 1), p - 1), zero, 0);
  out[0] = mul(mul(sign(x), slope), spread(grads[0]));
}

const Op& norm_op = register_op<NormArgs>(
    {.schema = "norm(x)",
     .infer = norm_infer,
     .cpu = in_workspace<norm_cpu>,
     .workspace = workspace_of<norm_cpu>,
     .rule = norm_rule,
     .backward = norm_backward,
     .saves_inputs = saves_all,
     .saves_outputs = saves_all,
     .about =
         "The p-th root of the sum of x's magnitudes to the power of p > 0; for p = 0, how many "
         "elements are not 0."});

// vector_norm

void vector_infer(const Call& call, ResultShapes& out) {
  operands::check_floating("vector_norm", call.in[0]);
  out.push_back({Dims{}, call.in[0].dtype()});
}

void vector_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const double sum = sum_of_squares(w, call.in[0]);
  if (!w.counts()) {
    kernels::fill(out[0].dtype(), 1, std::sqrt(sum), pointer<void>(out[0]));
  }
}

void vector_rule(const RuleContext& context, Strategies& strategies) {
  norm_terms(strategies, operands::sorted_dims("vector_norm", {}, context.call.in[0].dims()), 2);
}

/// x / norm; 0 for a vector of zeros.
void vector_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  const Tensor x = operands::whole_norm(context.in[0], 2);
  out[0] = mul(x, quotient(grads[0], operands::whole_norm(context.out[0], 2)));
}

// squared_norm

void squared_infer(const Call& call, ResultShapes& out) {
  operands::check_floating("squared_norm", call.in[0]);
  out.push_back({Dims{}, DType::f64});
}

void squared_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const double sum = sum_of_squares(w, call.in[0]);
  if (!w.counts()) {
    *out[0].data<double>() = sum;
  }
}

void squared_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(strategy({Shard(d)}, {Partial()}));
  }
}

void squared_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  out[0] = mul(x, cast(mul_scalar(grads[0], 2), x.dtype()));
}

const Op& vector_op = register_op({.schema = "vector_norm(x)",
                                   .infer = vector_infer,
                                   .cpu = in_workspace<vector_cpu>,
                                   .workspace = workspace_of<vector_cpu>,
                                   .rule = vector_rule,
                                   .backward = vector_backward,
                                   .saves_inputs = saves_all,
                                   .saves_outputs = saves_all,
                                   .about = "The Euclidean norm of all elements."});

const Op& squared_op = register_op({.schema = "squared_norm(x)",
                                    .infer = squared_infer,
                                    .cpu = in_workspace<squared_cpu>,
                                    .workspace = workspace_of<squared_cpu>,
                                    .rule = squared_rule,
                                    .backward = squared_backward,
                                    .saves_inputs = saves_all,
                                    .about = "The sum of squares of all elements, in f64."});

}  // namespace

Tensor norm(const Tensor& x, double p, const Dims& dims, bool keepdim, bool across_ranks) {
  operands::check_floating("norm", x);
  if (std::isinf(p)) {
    return reductions::extreme_magnitude(p > 0, x, dims, keepdim, across_ranks);
  }
  if (!(p >= 0)) {
    fail({.thing = "norm",
          .wrong = "p is not a valid order",
          .expected = "0 or more, or an infinity",
          .got = fmt::format("{}", printable(p))});
  }
  const Dims sorted = operands::sorted_dims("norm", dims, x.dims());
  // A count has no gradient.
  Tensor y = call_one(norm_op, {p == 0 ? detach(x) : x}, NormArgs{sorted, keepdim, p});
  if (!across_ranks) {
    return y;
  }
  return is_sum(p) ? operands::whole_sum(y) : operands::whole_norm(y, p);
}

Tensor vector_norm(const Tensor& x) { return call_one(vector_op, {x}); }
Tensor squared_norm(const Tensor& x) { return call_one(squared_op, {x}); }

}  // namespace tessera::ops

namespace tessera::operands {

Tensor whole_norm(const Tensor& y, double p) {
  bool terms = false;
  for (int axis = 0; y.is_distributed() && axis < y.layout().ndim(); ++axis) {
    terms = terms || y.layout().placement(axis).is_norm();
  }
  return terms ? call_one(ops::whole_op, {y}, ops::WholeNormArgs{p}) : y;
}

}  // namespace tessera::operands
