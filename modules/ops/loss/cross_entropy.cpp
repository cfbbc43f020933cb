module;
#include "loss/kernels/cross_entropy.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <vector>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :norm_call;
import :loss_call;

namespace tessera::ops {
namespace {

using namespace losses;
using rules::strategy;

void check(const Call& call, std::size_t logits_at, std::size_t targets_at) {
  const Tensor& logits = call.in[logits_at];
  if (logits.dims() == 0) {
    refuse(call, {.wrong = "logits has no dims", .expected = "[..., vocab]"});
  }
  check_shape(call, targets_at, without_last(logits.shape()));
  if (call.in[targets_at].dtype() != DType::i64) {
    refuse(call, {.wrong = "targets must be i64",
                  .got = std::string(name_of(call.in[targets_at].dtype()))});
  }
}

struct CrossEntropyArgs {
  std::int64_t ignore_index;
  bool loss_parallel;
  SpecArgument whole{};  // of a local call: the Spec of the logits that its own are part of
};

/// `at`: the operand that holds the logits.
template <std::size_t at>
Attributes localize(const LocalContext& context) {
  return with_whole<CrossEntropyArgs>(context, context.in[at]);
}

kernels::CrossEntropyShape shape_of(const Call& call, const Tensor& logits, const Tensor& targets) {
  const auto arguments = call.args<CrossEntropyArgs>();
  kernels::CrossEntropyShape shape;
  shape.rows = targets.numel();
  shape.vocab = logits.shape().back();
  shape.vocab_start = classes_of(arguments.whole, logits).first;
  shape.ignore_index = arguments.ignore_index;
  return shape;
}

/// Errors: a target that is neither ignored nor a class.
void check_targets(const Call& call, const Tensor& logits, const Tensor& targets) {
  const auto arguments = call.args<CrossEntropyArgs>();
  const std::int64_t classes = classes_of(arguments.whole, logits).count;
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    const std::int64_t target = pointer<std::int64_t>(targets)[row];
    if (target != arguments.ignore_index && (target < 0 || target >= classes)) {
      refuse(call, {.wrong = fmt::format("target {} of row {} is out of range", target, row),
                    .expected = fmt::format("0 to {}, or {} to ignore the row", classes - 1,
                                            arguments.ignore_index)});
    }
  }
}

/// The loss of each row into `losses`, and what the backward begins with into `lse`.
void forward(Workspace& w, const Call& call, const Tensor& losses, const Tensor& lse) {
  const Tensor logits = contiguous_operand(w, call.in[0]);
  const Tensor targets = contiguous_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  visit_floating(logits.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    const std::int64_t bad = kernels::cross_entropy_forward(
        shape_of(call, logits, targets), pointer<T>(logits), pointer<std::int64_t>(targets),
        pointer<C>(losses), pointer<C>(lse));
    if (bad >= 0) {
      check_targets(call, logits, targets);
    }
  });
}

// logits_statistics: what a rank knows of its part of the vocabulary.

void statistics_infer(const Call& call, ResultShapes& out) {
  check(call, 0, 1);
  for (int i = 0; i < 3; ++i) {
    out.push_back({call.in[1].shape(), statistics_type(call.in[0].dtype())});
  }
}

void statistics_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor logits = contiguous_operand(w, call.in[0]);
  const Tensor targets = contiguous_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  check_targets(call, logits, targets);
  visit_floating(logits.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    kernels::cross_entropy_partial(shape_of(call, logits, targets), pointer<T>(logits),
                                   pointer<std::int64_t>(targets), pointer<C>(out[0]),
                                   pointer<C>(out[1]), pointer<C>(out[2]));
  });
}

const Op& statistics_op = register_op<CrossEntropyArgs>({
    .schema = "logits_statistics(logits, targets)",
    .infer = statistics_infer,
    .cpu = in_workspace<statistics_cpu>,
    .workspace = workspace_of<statistics_cpu>,
    .about = "For this rank's part of the vocabulary: each row's maximum, sum of exp(logits - "
             "maximum), and target logit (0 if it is in another part); local tensors.",
});

/// The loss of each row and the log of its sum of exponentials, over all parts of the vocabulary.
Tensors combine(const Call& call, const InnerReduce& reduce) {
  const Tensors part = tessera::call(statistics_op, call.in, call.attributes);
  const Tensor maximum = reduce(part[0], ReduceOp::max);
  const Tensor terms[] = {mul(part[1], exp(sub(part[0], maximum))), part[2]};
  const Tensor sums = reduce(stack(terms), ReduceOp::sum);
  const Tensor lse = add(maximum, log(select(sums, 0, 0)));
  const Tensor ignore_index =
      full({}, static_cast<double>(call.args<CrossEntropyArgs>().ignore_index), DType::i64,
           call.in[1].device());
  const Tensor losses = masked_fill(sub(lse, select(sums, 0, 1)), eq(call.in[1], ignore_index), 0);
  return {losses, lse};
}

/// A sharded vocabulary, where the caller allows it: results as if it were whole.
void add_loss_parallel(const RuleContext& context, Strategies& strategies) {
  if (context.call.args<CrossEntropyArgs>().loss_parallel) {
    strategies.push_back(
        strategy({Shard(context.call.in[0].dims() - 1), Replicate()}, {Replicate(), Replicate()}));
    strategies.back().reductions = {InnerReduction{.op = ReduceOp::max, .like = 1},
                                    InnerReduction{.op = ReduceOp::sum, .like = 1, .times = 2}};
  }
}

// cross_entropy_rows: the loss of each row.

void rows_infer(const Call& call, ResultShapes& out) {
  check(call, 0, 1);
  const ResultShape rows{call.in[1].shape(), statistics_type(call.in[0].dtype())};
  out.push_back(rows);
  out.push_back(rows);  // logarithms of the sums of exponentials
}

void rows_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  forward(w, call, out[0], out[1]);
}

void rows_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[1].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
  add_loss_parallel(context, strategies);
}

void rows_composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  out = combine(call, reduce);
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& rows_op = register_op<CrossEntropyArgs>({
    .schema = "cross_entropy_rows(logits, targets)",
    .infer = rows_infer,
    .cpu = in_workspace<rows_cpu>,
    .workspace = workspace_of<rows_cpu>,
    .rule = rows_rule,
    .localize = localize<0>,
    .composed = rows_composed,
    .backward = backward,
    .saves_inputs = saves_all,
    .saves_outputs = 0b10,
    .about = "-log softmax(logits)[target] of each row.",
});

// cross_entropy: their sum.

void sum_infer(const Call& call, ResultShapes& out) {
  rows_infer(call, out);
  out[0].shape = {};
}

void sum_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor losses = temporary(w, out[1].shape(), out[1].dtype());
  forward(w, call, losses, out[1]);
  if (w.counts()) {
    return;
  }
  visit_floating(losses.dtype(), call.op.name, [&]<class T>(T) {
    double total = 0;  // in the order of the rows
    for (std::int64_t i = 0; i < losses.numel(); ++i) {
      total += static_cast<double>(pointer<T>(losses)[i]);
    }
    *pointer<T>(out[0]) = static_cast<T>(total);
  });
}

void sum_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[1].dims(); ++d) {
    strategies.push_back(strategy({Shard(d), Shard(d)}, {Partial(), Shard(d)}));
  }
  add_loss_parallel(context, strategies);
}

void sum_composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  out = combine(call, reduce);
  out[0] = sum(out[0]);
}

const Op& sum_op = register_op<CrossEntropyArgs>({
    .schema = "cross_entropy(logits, targets)",
    .infer = sum_infer,
    .cpu = in_workspace<sum_cpu>,
    .workspace = workspace_of<sum_cpu>,
    .rule = sum_rule,
    .localize = localize<0>,
    .composed = sum_composed,
    .backward = backward,
    .saves_inputs = saves_all,
    .saves_outputs = 0b10,
    .about = "The sum over rows of -log softmax(logits)[target].",
});

// The gradient of both: dloss is one number, or one for each row.

void grad_infer(const Call& call, ResultShapes& out) {
  check(call, 1, 2);
  const Tensor& dloss = call.in[0];
  if (dloss.dims() != 0) {
    check_shape(call, 0, call.in[2].shape());
  }
  check_shape(call, 3, call.in[2].shape());
  check_type(call, 0, statistics_type(call.in[1].dtype()));
  check_type(call, 3, statistics_type(call.in[1].dtype()));
  out.push_back({call.in[1].shape(), call.in[1].dtype()});
}

void grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor dloss = contiguous_operand(w, call.in[0]);
  const Tensor logits = contiguous_operand(w, call.in[1]);
  const Tensor targets = contiguous_operand(w, call.in[2]);
  const Tensor lse = contiguous_operand(w, call.in[3]);
  visit_floating(logits.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    C* const repeated = w.take<C>(dloss.dims() == 0 ? targets.numel() : 0);
    if (w.counts()) {
      return;
    }
    const C* of_rows = pointer<C>(dloss);
    if (dloss.dims() == 0) {
      std::fill_n(repeated, targets.numel(), *of_rows);
      of_rows = repeated;
    }
    kernels::cross_entropy_backward(shape_of(call, logits, targets), pointer<T>(logits),
                                    pointer<std::int64_t>(targets), pointer<C>(lse), of_rows,
                                    pointer<T>(out[0]));
  });
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  const bool one_number = context.call.in[0].dims() == 0;
  for (int d = 0; d < context.call.in[2].dims(); ++d) {
    strategies.push_back(
        strategy({one_number ? Replicate() : Shard(d), Shard(d), Shard(d), Shard(d)}, {Shard(d)}));
  }
  // A part of the vocabulary needs only the rows' sums over all of it, which forward has kept.
  // A single class is whole: its gradient's gradient would be a shard of the rows' sums.
  const int vocabulary = context.call.in[1].dims() - 1;
  if (context.call.args<CrossEntropyArgs>().loss_parallel ||
      context.call.in[1].shape()[vocabulary] > 1) {
    strategies.push_back(
        strategy({Replicate(), Shard(vocabulary), Replicate(), Replicate()}, {Shard(vocabulary)}));
  }
  pass_partial(context, strategies, 0b0001);
}

/// The logarithms of softmax(logits). Where the vocabulary may be sharded not by way of lse, whose
/// gradient would be a sum over the vocabulary in secret: log_softmax declares its reductions.
Tensor log_shares(const BackwardContext& context, const Tensor& logits, const Tensor& lse) {
  const Tensor wide = cast(logits, lse.dtype());
  return context.args<CrossEntropyArgs>().loss_parallel ? log_softmax(wide, -1, true)
                                                        : sub(wide, unsqueeze(lse, -1));
}

/// Gradient of (p - [class is the target]) dloss, and 0 in ignored rows. p's share by way of lse
/// goes back to what made that, or is counted here.
void second(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
  const Tensor& targets = context.in[2];
  const DType wide = context.in_dtypes[0];
  const Tensor g = cast(grads[0], wide);
  const auto arguments = context.args<CrossEntropyArgs>();
  const Tensor ignored =
      mul_scalar(ones_like(targets), static_cast<double>(arguments.ignore_index));
  const Tensor counts = cast(ne(targets, ignored), wide);
  const Tensor log_p = log_shares(context, context.in[1], context.in[3]);
  const Tensor share = mul(g, exp(log_p));
  if (context.needs(0)) {
    const Tensor rows = add(mul(sum(share, {-1}), counts),
                            nll_loss(g, targets, Reduction::none, arguments.ignore_index));
    out[0] = context.in_shapes[0].empty() ? sum(rows) : rows;
  }
  if (context.needs(1) || context.needs(3)) {
    Tensor of_p = mul(share, unsqueeze(mul(counts, context.in[0]), -1));
    if (arguments.loss_parallel) {
      of_p = log_softmax_backward(of_p, log_p, -1, true);
    } else if (context.needs(3)) {
      out[3] = neg(sum(of_p, {-1}));
    }
    out[1] = cast(of_p, context.in_dtypes[1]);
  }
}

const Op& cross_entropy_backward_op = register_op<CrossEntropyArgs>({
    .schema = "cross_entropy_backward(dloss, logits, targets, lse)",
    .infer = grad_infer,
    .cpu = in_workspace<grad_cpu>,
    .workspace = workspace_of<grad_cpu>,
    .rule = grad_rule,
    .localize = localize<1>,
    .backward = second,
    .saves_inputs = saves_all,
    .about = "The gradient of cross_entropy with respect to logits.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensor& logits = context.in[0];
  const Tensor& lse = context.out[1];
  if (grads[0]) {
    out[0] = call_one(cross_entropy_backward_op, {grads[0], logits, context.in[1], lse},
                      context.attributes);
  }
  if (grads[1]) {  // a gradient is differentiated again
    const Tensor p = exp(log_shares(context, logits, lse));
    add_to(out[0], cast(mul(p, unsqueeze(grads[1], -1)), logits.dtype()));
  }
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  if (options.label_smoothing != 0 || options.weight) {
    return weighted_cross_entropy(logits, targets, options);
  }
  if (options.reduction == Reduction::none) {
    return cross_entropy_rows(logits, targets, options.ignore_index, options.loss_parallel);
  }
  const Tensor sum = call_one(sum_op, {logits, targets},
                              CrossEntropyArgs{.ignore_index = options.ignore_index,
                                               .loss_parallel = options.loss_parallel});
  return options.reduction == Reduction::sum
             ? sum
             : div(sum, cast(counted_rows(targets, options.ignore_index), sum.dtype()));
}

RowLosses cross_entropy_with_sums(const Tensor& logits, const Tensor& targets,
                                  std::int64_t ignore_index, bool loss_parallel) {
  const Tensors results =
      call(rows_op, {logits, targets},
           CrossEntropyArgs{.ignore_index = ignore_index, .loss_parallel = loss_parallel});
  return {.losses = results[0], .log_sums = results[1]};
}

Tensor cross_entropy_grad(const Tensor& dlosses, const Tensor& logits, const Tensor& targets,
                          const Tensor& log_sums, std::int64_t ignore_index, bool loss_parallel) {
  return call_one(cross_entropy_backward_op, {dlosses, logits, targets, log_sums},
                  CrossEntropyArgs{.ignore_index = ignore_index, .loss_parallel = loss_parallel});
}

Tensor cross_entropy_rows(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index,
                          bool loss_parallel) {
  return cross_entropy_with_sums(logits, targets, ignore_index, loss_parallel).losses;
}

}  // namespace tessera::ops
