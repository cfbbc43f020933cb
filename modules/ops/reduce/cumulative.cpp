// Along one dim, of all elements up to each one: cumsum, cumprod, logcumsumexp.
module;
#include <cstdint>
#include <limits>
#include <span>

#include "reduce/kernels/scan.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :reduce_call;
import :view_call;

namespace tessera::ops {
namespace {

struct DimArgs {
  std::int64_t dim;
};

using namespace reductions;

/// x one place further along `dim`, or one place back, with 0 where nothing comes from.
Tensor moved(const Tensor& x, int dim, bool further) {
  const std::int64_t extent = x.shape()[dim];
  return views::slice_backward(narrow(x, dim, further ? 0 : 1, extent - 1), dim, extent,
                               further ? 1 : 0);
}

int dim_of(const Call& call) {
  return operands::front_dim(call.op.name.c_str(), call.args<DimArgs>().dim, call.in[0].dims());
}

void infer(const Call& call, ResultShapes& out) {
  dim_of(call);
  out.push_back(
      {call.in[0].shape(), is_floating(call.in[0].dtype()) ? call.in[0].dtype() : DType::i64});
}

void infer_floating(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  infer(call, out);
}

template <kernels::ScanOp op, bool from_end = false>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const int count = call.in[0].dims();
  const Dims dim = operands::sorted_dims(call.op.name.c_str(), {call.args<DimArgs>().dim}, count);
  const operands::ReducedOperand r = reduced_operand(w, call.in[0], dim);
  if (w.counts()) {
    return;
  }
  kernels::scan(op, from_end, r.x.dtype(), {r.outer, r.reduced, r.inner}, pointer<void>(w, r.x),
                pointer<void>(w, out[0]));
}

/// All dims but the one that is gone along.
void rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      rules::same_dim(context, strategies, d);
    }
  }
}

void sums_rule(const RuleContext& context, Strategies& strategies) {
  rule(context, strategies);
  rules::linear(context, strategies);
}

/// The two directions are each other's gradient.
template <bool from_end>
void sums_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  static const Op& other = find_op(from_end ? "cumsum" : "cumsum_from_end");
  out[0] = call_one(other, {grads[0]}, context.attributes);
}

// linear_recurrence: y[k] = x[k] + factor[k] y[k - 1], and from the end y[k + 1].

void infer_recurrence(const Call& call, ResultShapes& out) {
  check_shape(call, 1, call.in[0].shape());
  check_one_type(call);
  infer_floating(call, out);
}

template <bool from_end>
void recurrence_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Dims dim =
      operands::sorted_dims(call.op.name.c_str(), {call.args<DimArgs>().dim}, call.in[0].dims());
  const operands::ReducedOperand r = reduced_operand(w, call.in[0], dim);
  const operands::ReducedOperand factors = reduced_operand(w, call.in[1], dim);
  if (w.counts()) {
    return;
  }
  kernels::linear_recurrence(from_end, out[0].dtype(), {r.outer, r.reduced, r.inner},
                             pointer<void>(w, r.x), pointer<void>(factors.x),
                             pointer<void>(w, out[0]));
}

void recurrence_rule(const RuleContext& context, Strategies& strategies) {
  rule(context, strategies);
  pass_partial(context, strategies, 0b01);
}

/// A gradient reaches y[k] through the factors after it, so the recurrence runs in the other
/// direction with the same factors. The derivative by a factor is the value that it multiplies.
template <bool from_end>
void recurrence_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out) {
  static const Op& other = find_op(from_end ? "linear_recurrence" : "linear_recurrence_from_end");
  const Tensor& factor = context.in[1];
  if (factor.dims() == 0 || factor.numel() == 0) {
    out[0] = grads[0];
    return;
  }
  const int dim =
      operands::front_dim(context.op.name.c_str(), context.args<DimArgs>().dim, factor.dims());
  const Tensor reached = call_one(other, {grads[0], moved(factor, dim, from_end)}, DimArgs{dim});
  out[0] = reached;
  if (context.needs(1)) {
    out[1] = mul(reached, moved(context.out[0], dim, !from_end));
  }
}

const Op& recurrence_op = register_op<DimArgs>({
    .schema = "linear_recurrence(x, factor)",
    .infer = infer_recurrence,
    .cpu = in_workspace<recurrence_cpu<false>>,
    .workspace = workspace_of<recurrence_cpu<false>>,
    .rule = recurrence_rule,
    .backward = recurrence_backward<false>,
    .saves_inputs = 0b10,
    .saves_outputs = saves_all,
    .about = "Each element of x plus its factor times the result before it along dim.",
});

const Op& recurrence_from_end_op = register_op<DimArgs>({
    .schema = "linear_recurrence_from_end(x, factor)",
    .infer = infer_recurrence,
    .cpu = in_workspace<recurrence_cpu<true>>,
    .workspace = workspace_of<recurrence_cpu<true>>,
    .rule = recurrence_rule,
    .backward = recurrence_backward<true>,
    .saves_inputs = 0b10,
    .saves_outputs = saves_all,
    .about = "Each element of x plus its factor times the result after it along dim.",
});

/// The sum over k >= i of g[k] times the product of the factors of i to k - 1, for each i.
Tensor gathered(const Tensor& g, const Tensor& factor, int dim) {
  return call_one(recurrence_from_end_op, {g, factor}, DimArgs{dim});
}

/// y[k] gains the product of the others up to k: of those before i, and of those from i + 1 to k.
void cumprod_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  along_dim(context, grads[0], out, [](const Tensor& x, const Tensor& g, int dim) {
    return mul(products_before(x, dim), gathered(g, moved(x, dim, false), dim));
  });
}

/// exp(part - whole), 0 for a part of exp(-infinity) = 0 of a whole of 0 too.
Tensor share(const Tensor& part, const Tensor& whole) {
  const Tensor nothing = logical_and(isinf(part), lt(part, zeros_like(part)));
  return exp(masked_fill(sub(part, whole), nothing, -std::numeric_limits<double>::infinity()));
}

/// y[k] gains exp(x[i] - y[k]): x[i]'s share of y[i], times y[i]'s share of y[i + 1], and so on to
/// y[k]. None is above 1.
void logcumsumexp_backward(const BackwardContext& context, std::span<const Tensor> grads,
                           std::span<Tensor> out) {
  along_dim(context, grads[0], out, [](const Tensor& x, const Tensor& g, int dim) {
    const std::int64_t extent = x.shape()[dim];
    const Tensor y = logcumsumexp(x, dim);
    const Tensor of_next = share(narrow(y, dim, 0, extent - 1), narrow(y, dim, 1, extent - 1));
    const Tensor factor = views::slice_backward(of_next, dim, extent, 0);
    return mul(share(x, y), gathered(g, factor, dim));
  });
}

const Op& cumsum_op = register_op<DimArgs>({.schema = "cumsum(x)",
                                            .infer = infer,
                                            .cpu = in_workspace<cpu<kernels::ScanOp::sum>>,
                                            .workspace = workspace_of<cpu<kernels::ScanOp::sum>>,
                                            .rule = sums_rule,
                                            .backward = sums_backward<false>,
                                            .about = "The cumulative sum along dim."});

[[maybe_unused]] const Op& cumsum_from_end_op =
    register_op<DimArgs>({.schema = "cumsum_from_end(x)",
                          .infer = infer,
                          .cpu = in_workspace<cpu<kernels::ScanOp::sum, true>>,
                          .workspace = workspace_of<cpu<kernels::ScanOp::sum, true>>,
                          .rule = sums_rule,
                          .backward = sums_backward<true>,
                          .about = "The cumulative sum along dim, from the end."});

const Op& cumprod_op = register_op<DimArgs>({.schema = "cumprod(x)",
                                             .infer = infer,
                                             .cpu = in_workspace<cpu<kernels::ScanOp::prod>>,
                                             .workspace = workspace_of<cpu<kernels::ScanOp::prod>>,
                                             .rule = rule,
                                             .backward = cumprod_backward,
                                             .saves_inputs = saves_all,
                                             .about = "The cumulative product along dim."});

const Op& logcumsumexp_op =
    register_op<DimArgs>({.schema = "logcumsumexp(x)",
                          .infer = infer_floating,
                          .cpu = in_workspace<cpu<kernels::ScanOp::log_sum_exp>>,
                          .workspace = workspace_of<cpu<kernels::ScanOp::log_sum_exp>>,
                          .rule = rule,
                          .backward = logcumsumexp_backward,
                          .saves_inputs = saves_all,
                          .about = "The cumulative log(sum(exp(x))) along dim."});

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) {
  operands::given("cumsum", "x", x);
  return call_one(cumsum_op, {x}, DimArgs{operands::front_dim("cumsum", dim, x.dims())});
}

Tensor cumprod(const Tensor& x, std::int64_t dim) {
  operands::given("cumprod", "x", x);
  return call_one(cumprod_op, {x}, DimArgs{operands::front_dim("cumprod", dim, x.dims())});
}

Tensor logcumsumexp(const Tensor& x, std::int64_t dim) {
  operands::given("logcumsumexp", "x", x);
  return call_one(logcumsumexp_op, {x},
                  DimArgs{operands::front_dim("logcumsumexp", dim, x.dims())});
}

}  // namespace tessera::ops
