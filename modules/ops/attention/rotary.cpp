module;
#include "attention/kernels/rotary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

#include "attention/arguments.hpp"

namespace tessera::ops {
namespace {

using rules::strategy;

using Kind = RotaryScaling::Kind;

using Scaling = functions::RotaryFrequencies::Scaling;

// The arguments take one enumeration for the other.
static_assert(static_cast<int>(Kind::none) == static_cast<int>(Scaling::none) &&
              static_cast<int>(Kind::linear) == static_cast<int>(Scaling::linear) &&
              static_cast<int>(Kind::llama3) == static_cast<int>(Scaling::llama3) &&
              static_cast<int>(Kind::yarn) == static_cast<int>(Scaling::yarn));

template <class A>
A with_scaling(A arguments, const RotaryScaling& scaling) {
  arguments.scaling = static_cast<Scaling>(scaling.kind);
  arguments.factor = scaling.factor;
  arguments.original_positions = scaling.original_positions;
  arguments.low = scaling.low;
  arguments.high = scaling.high;
  arguments.amplitude = scaling.amplitude;
  arguments.whole_dims = scaling.whole_dims;
  return arguments;
}

/// Errors: theta or a number of the scaling that is out of its range.
template <class A>
void check_frequencies(const Call& call, const A& arguments) {
  if (!(arguments.theta > 0)) {
    refuse(call, {.wrong = "theta must be positive",
                  .got = fmt::format("{}", printable(arguments.theta))});
  }
  if (arguments.scaling == Scaling::none) {
    return;
  }
  const bool by_length = arguments.scaling != Scaling::linear;
  if (!(arguments.factor > 0) || !(arguments.amplitude > 0) ||
      (by_length && !(arguments.original_positions > 0 && arguments.low > 0 &&
                      arguments.high > arguments.low))) {
    refuse(call, {.wrong = "the scaling of the frequencies is not right",
                  .expected = "factor and amplitude above 0; with llama3 and yarn also "
                              "original_positions and low above 0, and high above low",
                  .got = fmt::format("factor {}, amplitude {}, original_positions {}, low {}, "
                                     "high {}",
                                     printable(arguments.factor), printable(arguments.amplitude),
                                     printable(arguments.original_positions),
                                     printable(arguments.low), printable(arguments.high))});
  }
}

void check_even(const Call& call) {
  check_dims(call, 0, 4);
  if (call.in[0].shape()[3] % 2 != 0) {
    refuse(call, {.wrong = "the last dim must be even because its two halves are rotated together",
                  .got = to_string(call.in[0].shape())});
  }
}

void check_last_position(const Call& call, std::int64_t end) {
  if (end > most_positions) {
    refuse(call,
           {.wrong = fmt::format("position {} is too far", end - 1), .expected = "less than 2^26"});
  }
}

void infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  check_even(call);
  const auto arguments = call.args<RotaryArgs>();
  check_frequencies(call, arguments);
  if (arguments.offset < 0) {
    refuse(call, {.wrong = "offset must be at least 0",
                  .got = fmt::format("{}", static_cast<std::int64_t>(arguments.offset))});
  }
  check_last_position(call, checked_add(arguments.offset, x.shape()[1], call.op.name));
  out.push_back({x.shape(), x.dtype()});
}

/// The local call of a sharded x begins at the position at which its part does.
Attributes localize(const LocalContext& context) {
  return with_whole<RotaryArgs>(context, context.in[0]);
}

kernels::RotaryShape shape_of(const Tensor& x, const kernels::RotaryFrequencies& frequencies,
                              bool inverse) {
  kernels::RotaryShape shape;
  shape.batch = x.shape()[0];
  shape.time = x.shape()[1];
  shape.heads = x.shape()[2];
  shape.head_dim = x.shape()[3];
  shape.stride_batch = x.strides()[0];
  shape.stride_time = x.strides()[1];
  shape.stride_head = x.strides()[2];
  shape.frequencies = frequencies;
  shape.inverse = inverse;
  return shape;
}

Tensor rows_of(Workspace& w, const Tensor& x) {
  return x.strides()[3] == 1 ? x : contiguous_operand(w, x);
}

void turn(const Call& call, const kernels::RotaryShape& shape, const Tensor& x, const Tensor& out) {
  if (x.numel() != 0) {
    visit_floating(x.dtype(), call.op.name,
                   [&]<class T>(T) { kernels::rotary(shape, pointer<T>(x), pointer<T>(out)); });
  }
}

template <bool inverse>
void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = rows_of(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  const auto arguments = call.args<RotaryArgs>();
  kernels::RotaryShape shape = shape_of(x, functions::frequencies_of(arguments), inverse);
  shape.position_offset =
      arguments.offset + (arguments.whole ? local_offset(*arguments.whole)[1] : 0);
  turn(call, shape, x, out[0]);
}

void rule(const RuleContext& context, Strategies& strategies) {
  for (const int d : {0, 1, 2}) {
    strategies.push_back(strategy({Shard(d)}, {Shard(d)}));
  }
  pass_partial(context, strategies, 0b1);
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);
void inverse_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out);

const Op& rotary_op = register_op<RotaryArgs>({
    .schema = "rotary(x)",
    .infer = infer,
    .cpu = in_workspace<cpu<false>>,
    .workspace = workspace_of<cpu<false>>,
    .rule = rule,
    .localize = localize,
    .backward = backward,
    .about = "Rotary position embedding of [batch, time, head, head_dim], in the halves form.",
});

const Op& inverse_op = register_op<RotaryArgs>({
    .schema = "rotary_inverse(x)",
    .infer = infer,
    .cpu = in_workspace<cpu<true>>,
    .workspace = workspace_of<cpu<true>>,
    .rule = rule,
    .localize = localize,
    .backward = inverse_backward,
    .about = "The inverse rotation of rotary, which is also its gradient.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = call_one(inverse_op, {grads[0]}, context.attributes);
}

void inverse_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] = call_one(rotary_op, {grads[0]}, context.attributes);
}

// With positions that are given.

void at_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  check_even(call);
  const Dims& positions = call.in[1].shape();
  if (!(positions == Dims{x.size(1)} || positions == Dims{x.size(0), x.size(1)})) {
    refuse(call, fmt::format("the positions have the wrong shape (expected [{1}] or [{0}, {1}], "
                             "got {2})",
                             x.size(0), x.size(1), to_string(positions)));
  }
  check_type(call, 1, DType::i64);
  check_frequencies(call, call.args<RotaryAtArgs>());
  out.push_back({x.shape(), x.dtype()});
}

template <bool inverse>
void at_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = rows_of(w, call.in[0]);
  const Tensor positions = contiguous_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  kernels::RotaryShape shape =
      shape_of(x, functions::frequencies_of(call.args<RotaryAtArgs>()), inverse);
  shape.positions = pointer<std::int64_t>(positions);
  shape.stride_positions = positions.dims() == 2 ? x.size(1) : 0;
  for (std::int64_t i = 0; i < positions.numel(); ++i) {
    if (shape.positions[i] < 0) {
      refuse(call, {.wrong = fmt::format("position {} is below 0 (number {} of {})",
                                         shape.positions[i], i, to_string(positions.shape()))});
    }
    check_last_position(call, checked_add(shape.positions[i], 1, call.op.name));
    shape.positions_end = std::max(shape.positions_end, shape.positions[i] + 1);
  }
  turn(call, shape, x, out[0]);
}

void at_rule(const RuleContext& context, Strategies& strategies) {
  const int dims = context.call.in[1].dims();
  strategies.push_back(strategy({Shard(0), dims == 2 ? Shard(0) : Replicate()}, {Shard(0)}));
  strategies.push_back(strategy({Shard(1), Shard(dims - 1)}, {Shard(1)}));
  strategies.push_back(strategy({Shard(2), Replicate()}, {Shard(2)}));
  pass_partial(context, strategies, 0b01);
}

void at_backward(const BackwardContext& context, std::span<const Tensor> grads,
                 std::span<Tensor> out);
void at_inverse_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out);

const Op& at_op = register_op<RotaryAtArgs>({
    .schema = "rotary_at(x, positions)",
    .infer = at_infer,
    .cpu = in_workspace<at_cpu<false>>,
    .workspace = workspace_of<at_cpu<false>>,
    .rule = at_rule,
    .backward = at_backward,
    .saves_inputs = 0b10,
    .about = "rotary with explicit positions, [time] or [batch, time].",
});

const Op& at_inverse_op = register_op<RotaryAtArgs>({
    .schema = "rotary_at_inverse(x, positions)",
    .infer = at_infer,
    .cpu = in_workspace<at_cpu<true>>,
    .workspace = workspace_of<at_cpu<true>>,
    .rule = at_rule,
    .backward = at_inverse_backward,
    .saves_inputs = 0b10,
    .about = "The inverse rotation of rotary_at, which is also its gradient.",
});

void at_backward(const BackwardContext& context, std::span<const Tensor> grads,
                 std::span<Tensor> out) {
  out[0] = call_one(at_inverse_op, {grads[0], context.in[1]}, context.attributes);
}

void at_inverse_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out) {
  out[0] = call_one(at_op, {grads[0], context.in[1]}, context.attributes);
}

}  // namespace

Tensor rotary(const Tensor& x, const Tensor& positions, double theta,
              const RotaryScaling& scaling) {
  return call_one(at_op, {x, positions}, with_scaling(RotaryAtArgs{.theta = theta}, scaling));
}

Tensor rotary(const Tensor& x, double theta, std::int64_t offset, const RotaryScaling& scaling) {
  return call_one(rotary_op, {x},
                  with_scaling(RotaryArgs{.theta = theta, .offset = offset}, scaling));
}

}  // namespace tessera::ops
