// Losses of elements and rows, and their sums and means.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <tessera/printable.hpp>

#include "pointwise/kernels/functions.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using kernels::FunctionOp;
using rules::strategy;

void check_shapes(const char* op, const Tensor& a, const Tensor& b) {
  operands::given(op, "a", a);
  operands::given(op, "b", b);
  if (!(a.shape() == b.shape())) {
    fail(fmt::format("{}: the shapes differ ({} and {}); expand one", op, to_string(a.shape()),
                     to_string(b.shape())));
  }
}

Tensor reduced(const Tensor& each, Reduction reduction) {
  if (reduction == Reduction::none) {
    return each;
  }
  // The mean as a sum with a factor: shards of any size give a Partial(sum).
  const Tensor total = sum(each);
  return reduction == Reduction::sum ? total
                                     : mul_scalar(total, 1 / static_cast<double>(each.numel()));
}

// Of two elements.

void infer(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  operands::infer_broadcast(call, out);
}

template <FunctionOp op>
void element_cpu(const Call& call, std::span<Tensor> out) {
  Tensor& y = out[0];
  if (y.numel() == 0) {
    return;
  }
  const Dims a = operands::broadcast_strides(call.in[0], y.shape());
  const Dims b = operands::broadcast_strides(call.in[1], y.shape());
  const kernels::Operand in[] = {{call.in[0].raw_data(), a.span()},
                                 {call.in[1].raw_data(), b.span()}};
  const double beta = call.attributes.free().empty() ? 0 : call.read().scalar();
  kernels::function(op, kernel_type(y.dtype()), y.shape().span(), in, {&beta, 1}, y.raw_data());
}

/// Of a - b: its sign beyond beta, proportional within.
void smooth_l1_backward(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  const double beta = context.read().scalar();
  const Tensor difference = sub(context.in[0], context.in[1]);
  const Tensor slope =
      beta == 0 ? sign(difference) : hardtanh(mul_scalar(difference, 1 / beta), -1, 1);
  const Tensor g = mul(grads[0], slope);
  out[0] = operands::sum_to(g, context.in_shapes[0]);
  if (context.needs(1)) {
    out[1] = operands::sum_to(neg(g), context.in_shapes[1]);
  }
}

const Op& smooth_l1_op = register_op({.schema = "smooth_l1(a, b; beta: float)",
                                      .infer = infer,
                                      .cpu = element_cpu<FunctionOp::smooth_l1>,
                                      .rule = rules::pointwise,
                                      .backward = smooth_l1_backward,
                                      .saves_inputs = saves_all,
                                      .about = "The distance of a and b, a parabola below beta."});

void bce_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = operands::sum_to(mul(grads[0], sub(sigmoid(context.in[0]), context.in[1])),
                              context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = operands::sum_to(neg(mul(grads[0], context.in[0])), context.in_shapes[1]);
  }
}

const Op& bce_op =
    register_op({.schema = "binary_cross_entropy_with_logits(x, target)",
                 .infer = infer,
                 .cpu = element_cpu<FunctionOp::cross_entropy>,
                 .rule = rules::pointwise,
                 .backward = bce_backward,
                 .saves_inputs = saves_all,
                 .about = "-target log sigmoid(x) - (1 - target) log(1 - sigmoid(x))."});

void kl_div_cpu(const Call& call, std::span<Tensor> out) {
  call.read().flag() ? element_cpu<FunctionOp::kl_div_log>(call, out)
                     : element_cpu<FunctionOp::kl_div>(call, out);
}

/// A target of 0 counts nothing; its gradient is that of 0 too.
void kl_div_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  const bool log_target = context.read().flag();
  const Tensor& x = context.in[0];
  const Tensor& target = context.in[1];
  const Tensor weight = log_target ? exp(target) : target;
  if (context.needs(0)) {
    const Tensor counted = log_target ? weight : relu(weight);
    out[0] = operands::sum_to(neg(mul(grads[0], counted)), context.in_shapes[0]);
  }
  if (context.needs(1)) {
    Tensor slope;
    if (log_target) {
      slope = mul(weight, add_scalar(sub(target, x), 1));
    } else {
      const Tensor counts = gt(target, zeros_like(target));
      const Tensor safe = where(counts, target, ones_like(target));
      slope = where(counts, sub(add_scalar(log(safe), 1), x), zeros_like(target));
    }
    out[1] = operands::sum_to(mul(grads[0], slope), context.in_shapes[1]);
  }
}

const Op& kl_div_op =
    register_op({.schema = "kl_div(log_probs, target; log_target: bool)",
                 .infer = infer,
                 .cpu = kl_div_cpu,
                 .rule = rules::pointwise,
                 .backward = kl_div_backward,
                 .saves_inputs = saves_all,
                 .about = "target (log target - log_probs), 0 for a target of 0."});

// counted_rows: what the mean over rows divides by.

void count_infer(const Call& call, ResultShapes& out) {
  check_type(call, 0, DType::i64);
  out.push_back({{}, DType::i64});
}

void count_cpu(const Call& call, std::span<Tensor> out) {
  const std::int64_t ignored = call.read().integer();
  const Tensor targets = contiguous_operand(call.in[0]);
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

const Op& count_op = register_op({.schema = "counted_rows(targets; ignore_index: int)",
                                  .infer = count_infer,
                                  .cpu = count_cpu,
                                  .rule = count_rule,
                                  .composed = count_composed,
                                  .about = "How many of all ranks' targets are not ignore_index."});

// nll_loss: the loss of each row; a rank that holds some classes gives the losses of their rows.

/// Which classes the local call has.
struct Classes {
  std::int64_t ignore_index;
  std::int64_t first;
  std::int64_t count;
};

Classes classes_of(const Call& call, const Tensor& log_probs) {
  AttributeReader read = call.read();
  const std::int64_t ignore_index = read.integer();
  if (call.attributes.fixed().size() == 1) {
    return {ignore_index, 0, log_probs.shape().back()};
  }
  const std::int64_t first = read.integer();
  return {ignore_index, first, read.integer()};
}

template <std::size_t at>
Attributes localize(const LocalContext& context) {
  const Spec& log_probs = *context.in[at];
  return Attributes(context.call.attributes)
      .add(local_offset(log_probs).back())
      .add(log_probs.shape.back());
}

/// Calls f(row, class counted within the local ones) for each row whose target is local.
template <class F>
void for_each_target(const Call& call, const Tensor& log_probs, const Tensor& targets, F f) {
  const Classes classes = classes_of(call, log_probs);
  const std::int64_t local = log_probs.shape().back();
  const auto* target = targets.data<std::int64_t>();
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    if (target[row] == classes.ignore_index) {
      continue;
    }
    if (target[row] < 0 || target[row] >= classes.count) {
      refuse(call, fmt::format("target {} is out of range (expected 0 to {}, or {} to ignore the "
                               "row)",
                               target[row], classes.count - 1, classes.ignore_index));
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
    refuse(call, "log_probs has no dims (expected [..., classes])");
  }
  check_shape(call, targets, without_last(call.in[log_probs].shape()));
  check_type(call, targets, DType::i64);
}

void nll_infer(const Call& call, ResultShapes& out) {
  check_rows(call, 0, 1);
  out.push_back({call.in[1].shape(), call.in[0].dtype()});
}

void nll_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = contiguous_operand(call.in[0]);
  const Tensor targets = contiguous_operand(call.in[1]);
  kernels::fill(kernel_type(x.dtype()), out[0].numel(), 0, out[0].raw_data());
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

const Op& nll_op = register_op({.schema = "nll_loss(log_probs, targets; ignore_index: int)",
                                .infer = nll_infer,
                                .cpu = nll_cpu,
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

void nll_grad_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor grad = contiguous_operand(call.in[0]);
  const Tensor targets = contiguous_operand(call.in[2]);
  const Tensor& y = out[0];
  kernels::fill(kernel_type(y.dtype()), y.numel(), 0, y.raw_data());
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
    register_op({.schema = "nll_loss_backward(grad, log_probs, targets; ignore_index: int)",
                 .infer = nll_grad_infer,
                 .cpu = nll_grad_cpu,
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

Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  check_shapes("mse_loss", a, b);
  return reduced(square(sub(a, b)), reduction);
}

Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction) {
  check_shapes("l1_loss", a, b);
  return reduced(abs(sub(a, b)), reduction);
}

Tensor smooth_l1_loss(const Tensor& a, const Tensor& b, Reduction reduction, double beta) {
  check_shapes("smooth_l1_loss", a, b);
  if (!(beta >= 0)) {
    fail(fmt::format("smooth_l1_loss: beta is a length (expected 0 or more, got {})",
                     printable(beta)));
  }
  return reduced(call_one(smooth_l1_op, {a, b}, Attributes().scalar(beta)), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        Reduction reduction) {
  check_shapes("binary_cross_entropy_with_logits", x, target);
  return reduced(call_one(bce_op, {x, target}), reduction);
}

Tensor kl_div(const Tensor& log_probs, const Tensor& target, Reduction reduction, bool log_target) {
  check_shapes("kl_div", log_probs, target);
  return reduced(call_one(kl_div_op, {log_probs, target}, Attributes().add(log_target)), reduction);
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& targets, Reduction reduction,
                std::int64_t ignore_index) {
  const Tensor each = call_one(nll_op, {log_probs, targets}, Attributes().add(ignore_index));
  if (reduction != Reduction::mean) {
    return reduced(each, reduction);
  }
  return div(sum(each), cast(counted_rows(targets, ignore_index), each.dtype()));
}

Tensor counted_rows(const Tensor& targets, std::int64_t ignore_index) {
  return call_one(count_op, {targets}, Attributes().add(ignore_index));
}

}  // namespace tessera::ops
