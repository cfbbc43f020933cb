// The loss of rows of log-probabilities, and how many rows count: nll_loss, counted_rows.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :loss_call;

namespace tessera::ops {
namespace {

using namespace losses;
using rules::strategy;

// counted_rows: what the mean over rows divides by.

struct CountArgs {
  std::int64_t ignore_index;
};

void count_infer(const Call& call, ResultShapes& out) {
  check_type(call, 0, DType::i64);
  out.push_back({{}, DType::i64});
}

void count_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const std::int64_t ignored = call.args<CountArgs>().ignore_index;
  const Tensor targets = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    count += pointer<std::int64_t>(targets)[row] != ignored ? 1 : 0;
  }
  *pointer<std::int64_t>(out[0]) = count;
}

void count_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(strategy({Shard(d)}, {Replicate()}));
    strategies.back().reductions = {InnerReduction{.op = ReduceOp::sum}};
  }
}

void count_composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  out.push_back(reduce(call_one(call.op, {call.in[0]}, call.attributes), ReduceOp::sum));
}

const Op& count_op = register_op<CountArgs>(
    {.schema = "counted_rows(targets)",
     .infer = count_infer,
     .cpu = in_workspace<count_cpu>,
     .workspace = workspace_of<count_cpu>,
     .rule = count_rule,
     .composed = count_composed,
     .about = "The number of targets, of all ranks, that are not ignore_index."});

// nll_loss: the loss of each row; a rank that holds some classes gives the losses of their rows.

struct NllArgs {
  std::int64_t ignore_index;
  SpecArgument whole{};  // of a local call: the Spec of the log_probs that its own are part of
};

template <std::size_t at>
Attributes localize(const LocalContext& context) {
  return with_whole<NllArgs>(context, context.in[at]);
}

/// Calls f(row, class counted within the local ones) for each row whose target is local.
template <class F>
void for_each_target(const Call& call, const Tensor& log_probs, const Tensor& targets, F f) {
  const auto arguments = call.args<NllArgs>();
  const Classes classes = classes_of(arguments.whole, log_probs);
  const std::int64_t local = log_probs.shape().back();
  const auto* target = targets.data<std::int64_t>();
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    if (target[row] == arguments.ignore_index) {
      continue;
    }
    if (target[row] < 0 || target[row] >= classes.count) {
      refuse(call, {.wrong = fmt::format("target {} is out of range", target[row]),
                    .expected = fmt::format("0 to {}, or {} to ignore the row", classes.count - 1,
                                            arguments.ignore_index)});
    }
    const std::int64_t at = target[row] - classes.first;
    if (at >= 0 && at < local) {
      f(row, at);
    }
  }
}

void check_rows(const Call& call, std::size_t log_probs, std::size_t targets) {
  operands::check_floating(call.op.name, call.in[log_probs]);
  if (call.in[log_probs].dims() == 0) {
    refuse(call, {.wrong = "log_probs has no dims", .expected = "[..., classes]"});
  }
  check_shape(call, targets, without_last(call.in[log_probs].shape()));
  check_type(call, targets, DType::i64);
}

void nll_infer(const Call& call, ResultShapes& out) {
  check_rows(call, 0, 1);
  out.push_back({call.in[1].shape(), call.in[0].dtype()});
}

void nll_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  const Tensor targets = contiguous_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  kernels::fill(x.dtype(), out[0].numel(), 0, pointer<void>(out[0]));
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    const std::int64_t classes = x.shape().back();
    for_each_target(call, x, targets, [&](std::int64_t row, std::int64_t at) {
      const T value = pointer<T>(x)[row * classes + at];
      pointer<T>(out[0])[row] = static_cast<T>(-static_cast<C>(value));
    });
  });
}

void nll_rule(const RuleContext& context, Strategies& strategies) {
  const int rows = context.call.in[1].dims();
  for (int d = 0; d < rows; ++d) {
    rules::same_dim(context, strategies, d);
  }
  strategies.push_back(strategy({Shard(rows), Replicate()}, {Partial()}));
  pass_partial(context, strategies, 0b01);
}

void nll_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out);

const Op& nll_op = register_op<NllArgs>({.schema = "nll_loss(log_probs, targets)",
                                         .infer = nll_infer,
                                         .cpu = in_workspace<nll_cpu>,
                                         .workspace = workspace_of<nll_cpu>,
                                         .rule = nll_rule,
                                         .localize = localize<0>,
                                         .backward = nll_backward,
                                         .saves_inputs = saves_all,
                                         .about = "-log_probs[target] of each row."});

void nll_grad_infer(const Call& call, ResultShapes& out) {
  check_rows(call, 1, 2);
  check_shape(call, 0, call.in[2].shape());
  out.push_back({call.in[1].shape(), call.in[1].dtype()});
}

void nll_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor grad = contiguous_operand(w, call.in[0]);
  const Tensor targets = contiguous_operand(w, call.in[2]);
  if (w.counts()) {
    return;
  }
  const Tensor& y = out[0];
  kernels::fill(y.dtype(), y.numel(), 0, pointer<void>(y));
  visit_floating(y.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    const std::int64_t classes = y.shape().back();
    for_each_target(call, y, targets, [&](std::int64_t row, std::int64_t at) {
      pointer<T>(y)[row * classes + at] = static_cast<T>(-static_cast<C>(pointer<T>(grad)[row]));
    });
  });
}

void nll_grad_rule(const RuleContext& context, Strategies& strategies) {
  const int rows = context.call.in[2].dims();
  for (int d = 0; d < rows; ++d) {
    rules::same_dim(context, strategies, d);
  }
  strategies.push_back(strategy({Replicate(), Shard(rows), Replicate()}, {Shard(rows)}));
  pass_partial(context, strategies, 0b001);
  for (int op = 0; op < reduce_op_count; ++op) {  // only the layout of log_probs is looked at
    const Placement term = Partial(static_cast<ReduceOp>(op));
    strategies.push_back(strategy({Replicate(), term, Replicate()}, {Replicate()}));
  }
}

void nll_grad_backward(const BackwardContext& context, std::span<const Tensor> grads,
                       std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = call_one(nll_op, {grads[0], context.in[2]}, context.attributes);
  }
}

const Op& nll_gradient =
    register_op<NllArgs>({.schema = "nll_loss_backward(grad, log_probs, targets)",
                          .infer = nll_grad_infer,
                          .cpu = in_workspace<nll_grad_cpu>,
                          .workspace = workspace_of<nll_grad_cpu>,
                          .rule = nll_grad_rule,
                          .localize = localize<1>,
                          .backward = nll_grad_backward,
                          .saves_inputs = 0b100,
                          .about = "The gradient of nll_loss: -grad at the target of each row."});

void nll_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  out[0] = call_one(nll_gradient, {grads[0], context.in[0], context.in[1]}, context.attributes);
}

}  // namespace

Tensor nll_loss(const Tensor& log_probs, const Tensor& targets, Reduction reduction,
                std::int64_t ignore_index) {
  const Tensor each = call_one(nll_op, {log_probs, targets}, NllArgs{.ignore_index = ignore_index});
  if (reduction != Reduction::mean) {
    return reduced(each, reduction);
  }
  return div(sum(each), cast(counted_rows(targets, ignore_index), each.dtype()));
}

Tensor counted_rows(const Tensor& targets, std::int64_t ignore_index) {
  return call_one(count_op, {targets}, CountArgs{.ignore_index = ignore_index});
}

}  // namespace tessera::ops
