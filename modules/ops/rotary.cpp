module;
#include "kernels/rotary.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

void infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  check_dims(call, 0, 4);
  if (x.shape()[3] % 2 != 0) {
    refuse(call, fmt::format("the last dim must be even, its halves are turned together (got {})",
                             to_string(x.shape())));
  }
  AttributeReader attributes = call.read();
  const double theta = attributes.scalar();
  const std::int64_t offset = attributes.free_integer();
  if (!(theta > 0) || offset < 0) {
    refuse(call,
           fmt::format("theta must be positive and offset at least 0 (got {}, {})", theta, offset));
  }
  out.push_back({x.shape(), x.dtype()});
}

/// The local call of a sharded x has one attribute more: the place of its first time in the whole.
std::int64_t first_time(const Call& call) {
  return call.attributes.fixed().empty() ? 0 : call.read().integer();
}

Attributes with_first_time(const LocalContext& context) {
  return Attributes(context.call.attributes).add(local_offset(*context.in[0])[1]);
}

void turn(const Call& call, const Tensor& out, bool inverse) {
  const Tensor& in = call.in[0];
  const Tensor x = in.strides()[3] == 1 ? in : contiguous_operand(in);
  AttributeReader attributes = call.read();
  kernels::RotaryShape shape;
  shape.batch = x.shape()[0];
  shape.time = x.shape()[1];
  shape.heads = x.shape()[2];
  shape.head_dim = x.shape()[3];
  shape.stride_batch = x.strides()[0];
  shape.stride_time = x.strides()[1];
  shape.stride_head = x.strides()[2];
  shape.theta = attributes.scalar();
  shape.position_offset = attributes.free_integer() + first_time(call);
  shape.inverse = inverse;
  if (x.numel() == 0) {
    return;
  }
  visit_floating(x.dtype(), call.op.name,
                 [&]<class T>(T) { kernels::rotary(shape, pointer<T>(x), pointer<T>(out)); });
}

void cpu(const Call& call, std::span<Tensor> out) { turn(call, out[0], false); }
void inverse_cpu(const Call& call, std::span<Tensor> out) { turn(call, out[0], true); }

void rule(const RuleContext& context, Strategies& strategies) {
  for (const int d : {0, 1, 2}) {
    strategies.push_back(strategy({Shard(d)}, {Shard(d)}));
  }
  pass_partial(context, strategies, 0b1);
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);
void inverse_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out);

const Op& rotary_op = register_op({
    .schema = "rotary(x; theta: float, offset: free)",
    .infer = infer,
    .cpu = cpu,
    .rule = rule,
    .localize = with_first_time,
    .backward = backward,
    .about = "Rotary position embedding of [batch, time, head, head_dim], in the halves form.",
});

const Op& inverse_op = register_op({
    .schema = "rotary_inverse(x; theta: float, offset: free)",
    .infer = infer,
    .cpu = inverse_cpu,
    .rule = rule,
    .localize = with_first_time,
    .backward = inverse_backward,
    .about = "Turns back what rotary turned: its inverse and its gradient.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = call_one(inverse_op, {grads[0]}, context.attributes);
}

void inverse_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  out[0] = call_one(rotary_op, {grads[0]}, context.attributes);
}

}  // namespace

Tensor rotary(const Tensor& x, double theta, std::int64_t offset) {
  return call_one(rotary_op, {x}, Attributes().scalar(theta).free_integer(offset));
}

}  // namespace tessera::ops
