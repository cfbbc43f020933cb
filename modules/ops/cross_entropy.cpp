module;
#include "kernels/cross_entropy.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

void check(const Call& call, std::size_t logits_at, std::size_t targets_at) {
  const Tensor& logits = call.in[logits_at];
  if (logits.dims() == 0) {
    refuse(call, "logits has no dims (expected [..., vocab])");
  }
  check_shape(call, targets_at, without_last(logits.shape()));
  if (call.in[targets_at].dtype() != DType::i64) {
    refuse(call, fmt::format("targets must be i64 (got {})", name_of(call.in[targets_at].dtype())));
  }
}

kernels::CrossEntropyShape shape_of(const Call& call, const Tensor& logits, const Tensor& targets) {
  kernels::CrossEntropyShape shape;
  shape.rows = targets.numel();
  shape.vocab = logits.shape().back();
  shape.ignore_index = call.read().integer();
  return shape;
}

/// The loss of each row into `losses`, and what the backward begins with into `lse`.
void forward(const Call& call, const Tensor& losses, const Tensor& lse) {
  const Tensor logits = contiguous_operand(call.in[0]);
  const Tensor targets = contiguous_operand(call.in[1]);
  visit_floating(logits.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    const std::int64_t bad = kernels::cross_entropy_forward(
        shape_of(call, logits, targets), pointer<T>(logits), pointer<std::int64_t>(targets),
        pointer<C>(losses), pointer<C>(lse));
    if (bad >= 0) {
      refuse(call, fmt::format("target {} of row {} is out of range (expected 0 to {}, or {} to "
                               "ignore the row)",
                               pointer<std::int64_t>(targets)[bad], bad, logits.shape().back() - 1,
                               call.read().integer()));
    }
  });
}

// cross_entropy_rows: the loss of each row.

void rows_infer(const Call& call, ResultShapes& out) {
  check(call, 0, 1);
  const ResultShape rows{call.in[1].shape(), statistics_type(call.in[0].dtype())};
  out.push_back(rows);
  out.push_back(rows);  // logarithms of the sums of exponentials
}

void rows_cpu(const Call& call, std::span<Tensor> out) { forward(call, out[0], out[1]); }

void rows_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[1].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& rows_op = register_op({
    .schema = "cross_entropy_rows(logits, targets; ignore_index: int)",
    .infer = rows_infer,
    .cpu = rows_cpu,
    .rule = rows_rule,
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

void sum_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor losses = empty(out[1].shape(), out[1].dtype());
  forward(call, losses, out[1]);
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
}

const Op& sum_op = register_op({
    .schema = "cross_entropy(logits, targets; ignore_index: int)",
    .infer = sum_infer,
    .cpu = sum_cpu,
    .rule = sum_rule,
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
  out.push_back({call.in[1].shape(), call.in[1].dtype()});
}

void grad_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor dloss = contiguous_operand(call.in[0]);
  const Tensor logits = contiguous_operand(call.in[1]);
  const Tensor targets = contiguous_operand(call.in[2]);
  const Tensor lse = contiguous_operand(call.in[3]);
  visit_floating(logits.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    std::vector<C> repeated;
    const C* of_rows = pointer<C>(dloss);
    if (dloss.dims() == 0) {
      repeated.assign(static_cast<std::size_t>(targets.numel()), *of_rows);
      of_rows = repeated.data();
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
  pass_partial(context, strategies, 0b0001);
}

const Op& cross_entropy_backward_op = register_op({
    .schema = "cross_entropy_backward(dloss, logits, targets, lse; ignore_index: int)",
    .infer = grad_infer,
    .cpu = grad_cpu,
    .rule = grad_rule,
    .about = "The gradient of cross_entropy with respect to logits.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = call_one(cross_entropy_backward_op,
                    {grads[0], context.in[0], context.in[1], context.out[1]}, context.attributes);
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index) {
  return call_one(sum_op, {logits, targets}, Attributes().add(ignore_index));
}

Tensor cross_entropy_rows(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index) {
  return call_one(rows_op, {logits, targets}, Attributes().add(ignore_index));
}

}  // namespace tessera::ops
