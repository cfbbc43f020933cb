module;
#include <cstdint>
#include <span>

#include "kernels/norm.hpp"
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
  if (x.dims() == 0) {
    refuse(call, "x has no dims (expected at least 1)");
  }
  check_one_type(call);
  check_shape(call, 1, {x.shape().back()});
  check_shape(call, 2, {x.shape().back()});
  const ResultShape rows{without_last(x.shape()), statistics_type(x.dtype())};
  out.push_back({x.shape(), x.dtype()});
  out.push_back(rows);  // means
  out.push_back(rows);  // 1 / standard deviations
}

void cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = contiguous_operand(call.in[0]);
  const Tensor weight = contiguous_operand(call.in[1]);
  const Tensor bias = contiguous_operand(call.in[2]);
  const double eps = call.read().scalar();
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    kernels::layer_norm_forward(out[1].numel(), x.shape().back(), pointer<T>(x), pointer<T>(weight),
                                pointer<T>(bias), eps, pointer<T>(out[0]), pointer<C>(out[1]),
                                pointer<C>(out[2]));
  });
}

void rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims() - 1; ++d) {
    strategies.push_back(
        strategy({Shard(d), Replicate(), Replicate()}, {Shard(d), Shard(d), Shard(d)}));
  }
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& layer_norm_op = register_op({
    .schema = "layer_norm(x, weight?, bias?; eps: float)",
    .infer = infer,
    .cpu = cpu,
    .rule = rule,
    .backward = backward,
    .saves_inputs = 0b011,
    .saves_outputs = 0b110,
    .about = "x less its mean, divided by its standard deviation over the last dim, times weight, "
             "plus bias.",
});

void grad_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[1];
  check_shape(call, 0, x.shape());
  check_type(call, 0, x.dtype());
  check_shape(call, 2, {x.shape().back()});
  check_shape(call, 3, without_last(x.shape()));
  check_shape(call, 4, without_last(x.shape()));
  out.push_back({x.shape(), x.dtype()});
  out.push_back({Dims{x.shape().back()}, x.dtype()});
  out.push_back({Dims{x.shape().back()}, x.dtype()});
}

void grad_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor dy = contiguous_operand(call.in[0]);
  const Tensor x = contiguous_operand(call.in[1]);
  const Tensor weight = contiguous_operand(call.in[2]);
  const Tensor mean = contiguous_operand(call.in[3]);
  const Tensor rstd = contiguous_operand(call.in[4]);
  const Tensor dweight = sums_for(out[1]);
  const Tensor dbias = sums_for(out[2]);
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    kernels::layer_norm_backward(rstd.numel(), x.shape().back(), pointer<T>(dy), pointer<T>(x),
                                 pointer<T>(weight), pointer<C>(mean), pointer<C>(rstd),
                                 pointer<T>(out[0]), pointer<C>(dweight), pointer<C>(dbias));
  });
  convert_into(out[1], dweight);
  convert_into(out[2], dbias);
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[1].dims() - 1; ++d) {
    strategies.push_back(strategy({Shard(d), Shard(d), Replicate(), Shard(d), Shard(d)},
                                  {Shard(d), Partial(), Partial()}));
  }
  pass_partial(context, strategies, 0b00001);
}

const Op& layer_norm_backward_op = register_op({
    .schema = "layer_norm_backward(dy, x, weight?, mean, rstd)",
    .infer = grad_infer,
    .cpu = grad_cpu,
    .rule = grad_rule,
    .about = "The gradients of layer_norm with respect to x, weight and bias.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensors d = call(layer_norm_backward_op,
                         {grads[0], context.in[0], context.in[1], context.out[1], context.out[2]});
  for (std::size_t i = 0; i < 3; ++i) {
    if (context.needs(i)) {
      out[i] = d[i];
    }
  }
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return call_one(layer_norm_op, {x, weight, bias}, Attributes().scalar(eps));
}

}  // namespace tessera::ops
