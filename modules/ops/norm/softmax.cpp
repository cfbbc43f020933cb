// softmax and log_softmax. A dim with few columns behind it is brought to the end first.
module;
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "loss/kernels/cross_entropy.hpp"
#include "norm/kernels/norm.hpp"
#include "norm/kernels/norm_rows.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :norm_call;

namespace tessera::ops {
namespace {

using rules::strategy;

struct SoftmaxArgs {
  std::int64_t dim;
};

struct LogSoftmaxArgs {
  std::int64_t dim;
  bool loss_parallel;
};

template <class Args>
constexpr bool logarithm = std::is_same_v<Args, LogSoftmaxArgs>;

template <class Args>
int dim_of(const Call& call) {
  return wrap_dim(call.args<Args>().dim, call.in[0].dims(), call.op.name.c_str());
}

template <class Args>
void infer(const Call& call, ResultShapes& out) {
  dim_of<Args>(call);
  for (std::size_t i = 1; i < call.in.size(); ++i) {
    check_shape(call, i, call.in[0].shape());
  }
  check_one_type(call);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// Rows along one dim: the operand with that dim last, contiguous.
Tensor with_dim_last(Workspace& w, const Tensor& x, int dim) {
  return contiguous_operand(w, transposed_operand(x, dim, x.dims() - 1));
}

/// Calls kernel(rows, n, result) on a contiguous result with `dim` last, and puts it in place.
template <class Kernel>
void along(Workspace& w, const Tensor& out, int dim, Kernel kernel) {
  const Tensor in_place = transposed_operand(out, dim, out.dims() - 1);
  const Tensor result =
      in_place.is_contiguous() ? in_place : temporary(w, in_place.shape(), in_place.dtype());
  const std::int64_t n = result.shape().back();
  if (result.numel() != 0) {
    kernel(result.numel() / n, n, result);
  }
  if (!result.same_as(in_place) && !w.counts()) {
    copy_into(in_place, result);
  }
}

/// Whether the kernels for columns are used: whole vectors of them, and few enough rows that those
/// of a tile stay in the cache.
bool in_columns(const Dims& shape, int dim) {
  std::int64_t columns = 1;
  for (int d = dim + 1; d < shape.size(); ++d) {
    columns *= shape[d];
  }
  return columns >= 16 && shape[dim] <= (1 << 16);
}

template <class Args>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const int dim = dim_of<Args>(call);
  if (in_columns(call.in[0].shape(), dim)) {
    const operands::ReducedOperand r = reduced_operand(w, call.in[0], {dim});
    visit_floating(r.x.dtype(), call.op.name, [&]<class T>(T) {
      kernels::softmax_columns_forward(w, logarithm<Args>, r.outer, r.reduced, r.inner,
                                       pointer<T>(w, r.x), pointer<T>(w, out[0]));
    });
    return;
  }
  const Tensor x = with_dim_last(w, call.in[0], dim);
  along(w, out[0], dim, [&](std::int64_t rows, std::int64_t n, const Tensor& y) {
    visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
      if constexpr (logarithm<Args>) {
        if (w.counts()) {
          return;
        }
        kernels::log_softmax_forward(rows, n, pointer<T>(w, x), pointer<T>(w, y));
      } else {
        kernels::softmax_forward(w, rows, n, pointer<T>(w, x), pointer<T>(w, y));
      }
    });
  });
}

/// Computes rows along the last dim; the others are transposed, or computed by columns.
template <class Args, class F>
Element row_of(const Call& call) {
  return dim_of<Args>(call) == call.in[0].dims() - 1 ? element_of<F>() : Element{};
}

template <class Args>
void grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const int dim = dim_of<Args>(call);
  if (in_columns(call.in[0].shape(), dim)) {
    const operands::ReducedOperand r = reduced_operand(w, call.in[0], {dim});
    const Tensor y = contiguous_operand(w, call.in[1]);
    if (w.counts()) {
      return;
    }
    visit_floating(y.dtype(), call.op.name, [&]<class T>(T) {
      kernels::softmax_columns_backward(logarithm<Args>, r.outer, r.reduced, r.inner,
                                        pointer<T>(w, r.x), pointer<T>(w, y),
                                        pointer<T>(w, out[0]));
    });
    return;
  }
  const Tensor dy = with_dim_last(w, call.in[0], dim);
  const Tensor y = with_dim_last(w, call.in[1], dim);
  along(w, out[0], dim, [&](std::int64_t rows, std::int64_t n, const Tensor& dx) {
    if (w.counts()) {
      return;
    }
    visit_floating(y.dtype(), call.op.name, [&]<class T>(T) {
      if constexpr (logarithm<Args>) {
        kernels::log_softmax_backward(rows, n, pointer<T>(w, dy), pointer<T>(w, y),
                                      pointer<T>(w, dx));
      } else {
        kernels::softmax_backward(rows, n, pointer<T>(w, dy), pointer<T>(w, y), pointer<T>(w, dx));
      }
    });
  });
}

/// Every dim but the one that is summed over.
template <class Args>
void rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of<Args>(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      rules::same_dim(context, strategies, d);
    }
  }
}

template <class Args>
void grad_rule(const RuleContext& context, Strategies& strategies) {
  rule<Args>(context, strategies);
  pass_partial(context, strategies, 0b01);
}

/// Gradient of y (dy - <y, dy>), with <,> the sum of products along dim.
void softmax_second(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Tensor& g = grads[0];
  const Tensor& dy = context.in[0];
  const Tensor& y = context.in[1];
  if (context.needs(0)) {
    out[0] = call_one(context.op, {g, y}, context.attributes);
  }
  if (context.needs(1)) {
    const Dims dim{context.args<SoftmaxArgs>().dim};
    const Tensor of_g = mul(g, sum(mul(dy, y), dim, true));
    const Tensor of_dy = mul(dy, sum(mul(g, y), dim, true));
    out[1] = sub(mul(g, dy), add(of_g, of_dy));
  }
}

// log_softmax over a sharded dim, where the caller allows it.

/// As shape, with extent 1 in the dim: [outer, 1, inner].
ResultShape statistics_shape(const Call& call) {
  Dims shape = call.in[0].shape();
  shape[dim_of<LogSoftmaxArgs>(call)] = 1;
  return {shape, statistics_type(call.in[0].dtype())};
}

void statistics_infer(const Call& call, ResultShapes& out) {
  out.push_back(statistics_shape(call));
  out.push_back(statistics_shape(call));
}

void statistics_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const int dim = dim_of<LogSoftmaxArgs>(call);
  const Tensor x = with_dim_last(w, call.in[0], dim);
  const std::int64_t rows = out[0].numel();
  auto* const none = w.take<std::int64_t>(rows);  // no row has a target
  if (!w.counts()) {
    std::fill_n(none, rows, -1);
  }
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    const kernels::CrossEntropyShape shape{rows, x.shape().back(), 0, -1};
    C* const results = w.take<C>(3 * rows);
    if (w.counts()) {
      return;
    }
    kernels::cross_entropy_partial(shape, pointer<T>(x), none, results, results + rows,
                                   results + 2 * rows);
    for (std::size_t i = 0; i < 2; ++i) {
      const Tensor in_rows = transposed_operand(out[i], dim, out[i].dims() - 1);
      copy_into(in_rows, from_memory(results + static_cast<std::int64_t>(i) * rows, in_rows.shape(),
                                     out[i].dtype()));
    }
  });
}

const Op& statistics_op = register_op<LogSoftmaxArgs>({
    .schema = "softmax_statistics(x)",
    .infer = statistics_infer,
    .cpu = in_workspace<statistics_cpu>,
    .workspace = workspace_of<statistics_cpu>,
    .about = "The maximum and the sum of exp(x - maximum) over this rank's part of a dim; local "
             "tensors.",
});

/// A shard of the dim itself, with `count` reductions of one number for each row.
void add_loss_parallel(const RuleContext& context, Strategies& strategies,
                       std::initializer_list<ReduceOp> reductions) {
  if (!context.call.args<LogSoftmaxArgs>().loss_parallel) {
    return;
  }
  const int dim = dim_of<LogSoftmaxArgs>(context.call);
  rules::same_dim(context, strategies, dim);
  for (const ReduceOp op : reductions) {
    strategies.back().reductions.push_back({.op = op, .like = 0, .times = 1, .without_dim = dim});
  }
}

void log_rule(const RuleContext& context, Strategies& strategies) {
  rule<LogSoftmaxArgs>(context, strategies);
  add_loss_parallel(context, strategies, {ReduceOp::max, ReduceOp::sum});
}

void log_composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  const Tensor& x = call.in[0];
  const Tensors part = tessera::call(statistics_op, call.in, call.attributes);
  const Tensor maximum = reduce(part[0], ReduceOp::max);
  const Tensor total = reduce(mul(part[1], exp(sub(part[0], maximum))), ReduceOp::sum);
  out.push_back(cast(sub(cast(x, maximum.dtype()), add(maximum, log(total))), x.dtype()));
}

void log_grad_rule(const RuleContext& context, Strategies& strategies) {
  grad_rule<LogSoftmaxArgs>(context, strategies);
  add_loss_parallel(context, strategies, {ReduceOp::sum});
}

void log_grad_composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  const DType wide = statistics_type(call.in[0].dtype());
  const Tensor dy = cast(call.in[0], wide);
  const Tensor total = reduce(sum(dy, {dim_of<LogSoftmaxArgs>(call)}, true), ReduceOp::sum);
  out.push_back(cast(sub(dy, mul(exp(cast(call.in[1], wide)), total)), call.in[0].dtype()));
}

void softmax_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out);
void log_softmax_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out);

const Op& softmax_op = register_op<SoftmaxArgs>({
    .schema = "softmax(x)",
    .infer = infer<SoftmaxArgs>,
    .cpu = in_workspace<cpu<SoftmaxArgs>>,
    .workspace = workspace_of<cpu<SoftmaxArgs>>,
    .element = row_of<SoftmaxArgs, functions::Softmax>,
    .rule = rule<SoftmaxArgs>,
    .backward = softmax_gradient,
    .saves_outputs = saves_all,
    .about = "exp(x) divided by its sum over a dim.",
});

const Op& log_softmax_op = register_op<LogSoftmaxArgs>({
    .schema = "log_softmax(x)",
    .infer = infer<LogSoftmaxArgs>,
    .cpu = in_workspace<cpu<LogSoftmaxArgs>>,
    .workspace = workspace_of<cpu<LogSoftmaxArgs>>,
    .element = row_of<LogSoftmaxArgs, functions::LogSoftmax>,
    .rule = log_rule,
    .composed = log_composed,
    .backward = log_softmax_gradient,
    .saves_outputs = saves_all,
    .about = "The logarithm of softmax.",
});

const Op& softmax_backward_op = register_op<SoftmaxArgs>({
    .schema = "softmax_backward(dy, y)",
    .infer = infer<SoftmaxArgs>,
    .cpu = in_workspace<grad_cpu<SoftmaxArgs>>,
    .workspace = workspace_of<grad_cpu<SoftmaxArgs>>,
    .element = row_of<SoftmaxArgs, functions::SoftmaxBackward>,
    .rule = grad_rule<SoftmaxArgs>,
    .backward = softmax_second,
    .saves_inputs = saves_all,
    .about = "The gradient of softmax.",
});

/// The sum along the dim, for each element of it. Over a sharded dim by the gradient's own
/// reduction: of a y of 0 it makes x - sum(x).
Tensor total(const BackwardContext& context, const Tensor& x) {
  const auto args = context.args<LogSoftmaxArgs>();
  return args.loss_parallel ? sub(x, call_one(context.op, {x, zeros_like(x)}, context.attributes))
                            : sum(x, {args.dim}, true);
}

/// Gradient of dy - exp(y) total(dy).
void log_softmax_second(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  const DType wide = statistics_type(context.in_dtypes[1]);
  const Tensor g = cast(grads[0], wide);
  const Tensor share = mul(g, exp(cast(context.in[1], wide)));
  if (context.needs(0)) {
    out[0] = cast(sub(g, total(context, share)), context.in_dtypes[0]);
  }
  if (context.needs(1)) {
    const Tensor of_y = mul(share, total(context, cast(context.in[0], wide)));
    out[1] = cast(neg(of_y), context.in_dtypes[1]);
  }
}

const Op& log_softmax_backward_op = register_op<LogSoftmaxArgs>({
    .schema = "log_softmax_backward(dy, y)",
    .infer = infer<LogSoftmaxArgs>,
    .cpu = in_workspace<grad_cpu<LogSoftmaxArgs>>,
    .workspace = workspace_of<grad_cpu<LogSoftmaxArgs>>,
    .element = row_of<LogSoftmaxArgs, functions::LogSoftmaxBackward>,
    .rule = log_grad_rule,
    .composed = log_grad_composed,
    .backward = log_softmax_second,
    .saves_inputs = saves_all,
    .about = "The gradient of log_softmax.",
});

void softmax_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] = call_one(softmax_backward_op, {grads[0], context.out[0]}, context.attributes);
}

void log_softmax_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out) {
  out[0] = call_one(log_softmax_backward_op, {grads[0], context.out[0]}, context.attributes);
}

}  // namespace

Tensor softmax_backward(const Tensor& dy, const Tensor& y, std::int64_t dim) {
  return call_one(softmax_backward_op, {dy, y}, SoftmaxArgs{.dim = dim});
}

Tensor log_softmax_backward(const Tensor& dy, const Tensor& y, std::int64_t dim,
                            bool loss_parallel) {
  return call_one(log_softmax_backward_op, {dy, y},
                  LogSoftmaxArgs{.dim = dim, .loss_parallel = loss_parallel});
}

Tensor softmax(const Tensor& x, std::int64_t dim, bool across_ranks) {
  if (across_ranks && x && x.is_distributed()) {
    operands::check_floating("softmax", x);
    const Tensor wide = cast(x, statistics_type(x.dtype()));  // the logarithm is not rounded
    return cast(exp(log_softmax(wide, dim, true)), x.dtype());
  }
  return call_one(softmax_op, {x}, SoftmaxArgs{.dim = dim});
}

Tensor log_softmax(const Tensor& x, std::int64_t dim, bool loss_parallel) {
  return call_one(log_softmax_op, {x}, LogSoftmaxArgs{.dim = dim, .loss_parallel = loss_parallel});
}

}  // namespace tessera::ops
