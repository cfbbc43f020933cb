module;
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/types.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

/// The attributes; the local call of a sharded vocabulary has two more.
struct Classes {
  std::int64_t ignore_index;
  std::int64_t first = 0;
  std::int64_t all;

  Classes(const Attributes& attributes, std::int64_t width) : all(width) {
    AttributeReader reader(attributes);
    ignore_index = reader.integer();
    if (attributes.fixed().size() > 1) {
      first = reader.integer();
      all = reader.integer();
    }
  }
};

template <std::size_t at>
Attributes with_classes(const LocalContext& context) {
  const Spec& table = *context.in[at];
  Attributes local = context.call.attributes;
  return local.add(local_offset(table).back()).add(table.shape.back());
}

/// Calls f(row, column) for each row whose target lies in this part of the vocabulary.
template <class F>
void for_each_target(const Call& call, const Tensor& targets, std::int64_t width, F f) {
  const Classes classes(call.attributes, width);
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    const std::int64_t target = pointer<std::int64_t>(targets)[row];
    if (target == classes.ignore_index) {
      continue;
    }
    if (target < 0 || target >= classes.all) {
      refuse(call, fmt::format("target {} of row {} is out of range (expected 0 to {}, or {} to "
                               "ignore the row)",
                               target, row, classes.all - 1, classes.ignore_index));
    }
    if (target >= classes.first && target < classes.first + width) {
      f(row, target - classes.first);
    }
  }
}

void check(const Call& call, std::size_t table_at, std::size_t targets_at) {
  const Tensor& table = call.in[table_at];
  if (table.dims() == 0) {
    refuse(call, "log_probabilities has no dims (expected [..., vocab])");
  }
  check_shape(call, targets_at, without_last(table.shape()));
  check_type(call, targets_at, DType::i64);
}

void infer(const Call& call, ResultShapes& out) {
  check(call, 0, 1);
  out.push_back({{}, statistics_type(call.in[0].dtype())});
}

void cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = contiguous_operand(call.in[0]);
  const Tensor targets = contiguous_operand(call.in[1]);
  const std::int64_t width = x.shape().back();
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    double total = 0;  // in the order of the rows
    for_each_target(call, targets, width, [&](std::int64_t row, std::int64_t column) {
      total -= static_cast<double>(pointer<T>(x)[row * width + column]);
    });
    *pointer<kernels::Compute<T>>(out[0]) = static_cast<kernels::Compute<T>>(total);
  });
}

void rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[0].dims() - 1;
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Shard(d), Shard(d)}, {Partial()}));
  }
  strategies.push_back(strategy({Shard(last), Replicate()}, {Partial()}));
  pass_partial(context, strategies, 0b01);
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& nll_loss_op = register_op({
    .schema = "nll_loss(log_probabilities, targets; ignore_index: int)",
    .infer = infer,
    .cpu = cpu,
    .rule = rule,
    .localize = with_classes<0>,
    .backward = backward,
    .saves_inputs = saves_all,
    .about = "The sum over rows of -log_probabilities[target].",
});

// The gradient takes log_probabilities for its shape and its placement; it reads no value of it.

void grad_infer(const Call& call, ResultShapes& out) {
  check(call, 1, 2);
  check_shape(call, 0, {});
  check_type(call, 0, statistics_type(call.in[1].dtype()));
  out.push_back({call.in[1].shape(), call.in[1].dtype()});
}

void grad_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor targets = contiguous_operand(call.in[2]);
  const std::int64_t width = out[0].shape().back();
  std::memset(out[0].raw_data(), 0,
              static_cast<std::size_t>(out[0].numel()) * size_of(out[0].dtype()));
  visit_floating(out[0].dtype(), call.op.name, [&]<class T>(T) {
    const T value = static_cast<T>(-*pointer<kernels::Compute<T>>(call.in[0]));
    for_each_target(call, targets, width, [&](std::int64_t row, std::int64_t column) {
      pointer<T>(out[0])[row * width + column] = value;
    });
  });
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[1].dims() - 1;
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Replicate(), Shard(d), Shard(d)}, {Shard(d)}));
  }
  strategies.push_back(strategy({Replicate(), Shard(last), Replicate()}, {Shard(last)}));
  // Terms have the shape of the whole, so they serve as well.
  for (const Placement shape : {Partial(), Partial(ReduceOp::avg)}) {
    strategies.push_back(strategy({Replicate(), shape, Replicate()}, {Replicate()}));
  }
  for (const Placement terms : {Partial(), Partial(ReduceOp::avg)}) {
    for (const Placement shape : {Replicate(), Partial(), Partial(ReduceOp::avg)}) {
      strategies.push_back(strategy({terms, shape, Replicate()}, {terms}));
    }
  }
}

const Op& nll_loss_backward_op = register_op({
    .schema = "nll_loss_backward(dloss, log_probabilities, targets; ignore_index: int)",
    .infer = grad_infer,
    .cpu = grad_cpu,
    .rule = grad_rule,
    .localize = with_classes<1>,
    .about = "The gradient of nll_loss with respect to log_probabilities.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] =
      call_one(nll_loss_backward_op, {grads[0], context.in[0], context.in[1]}, context.attributes);
}

}  // namespace

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, std::int64_t ignore_index) {
  return call_one(nll_loss_op, {log_probabilities, targets}, Attributes().add(ignore_index));
}

}  // namespace tessera::ops
