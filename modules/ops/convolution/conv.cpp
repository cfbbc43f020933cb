// conv2d and its two gradients, which are each other's gradients too. An image becomes columns, one
// for each position of the kernel, and the convolution a product of matrices.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "convolution/kernels/convolution.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

struct ConvArgs {
  Dims stride, padding, dilation;
  std::int64_t groups;
};

struct ConvGradientArgs {
  Dims stride, padding, dilation;
  std::int64_t groups;
  Dims size;  // height and width of x for its gradient, of the kernel for the weight's
};

/// A: ConvArgs or ConvGradientArgs. Errors: settings that are not positive numbers for two dims.
template <class A>
A checked_args(const Call& call) {
  const auto s = call.args<A>();
  bool fits =
      s.stride.size() == 2 && s.padding.size() == 2 && s.dilation.size() == 2 && s.groups >= 1;
  if constexpr (requires { s.size; }) {
    fits = fits && s.size.size() == 2;
  }
  for (int i = 0; fits && i < 2; ++i) {
    fits = s.stride[i] > 0 && s.padding[i] >= 0 && s.dilation[i] > 0;
  }
  if (!fits) {
    refuse(call,
           {.wrong = "the settings are invalid",
            .expected = "one or two positive numbers, and padding of 0 or more",
            .got = fmt::format("stride {}, padding {}, dilation {}, groups {}", to_string(s.stride),
                               to_string(s.padding), to_string(s.dilation), s.groups)});
  }
  return s;
}

/// Shapes of a convolution: x [N, C, H, W], weight [O, C / groups, kh, kw], y [N, O, oh, ow].
struct Shapes {
  Dims x;
  Dims weight;
  Dims y;
};

/// Fills in y. Errors: shapes that do not fit.
template <class A>
kernels::Convolutions fitted(const Call& call, const A& s, Shapes& shapes) {
  const Dims& x = shapes.x;
  const Dims& weight = shapes.weight;
  if (x[1] % s.groups != 0 || x[1] / s.groups != weight[1] || weight[0] % s.groups != 0) {
    refuse(call, {.wrong = "the channels do not match",
                  .expected = "x [N, C, H, W], weight [groups n, C / groups, kh, kw]",
                  .got = fmt::format("x {}, weight {}, {} groups", to_string(x), to_string(weight),
                                     s.groups)});
  }
  kernels::Convolutions all{
      .windows = {.channels = weight[1]},
      .images = x[0],
      .groups = s.groups,
      .outputs = weight[0] / s.groups,
  };
  kernels::Windows& w = all.windows;
  shapes.y = {x[0], weight[0]};
  for (int i = 0; i < 2; ++i) {
    w.in[i] = x[i + 2];
    w.kernel[i] = weight[i + 2];
    w.stride[i] = s.stride[i];
    w.padding[i] = s.padding[i];
    w.dilation[i] = s.dilation[i];
    const std::int64_t room = window_room(call, w.in[i], w.kernel[i], w.dilation[i], w.padding[i]);
    if (room < 0) {
      refuse(call, {.wrong = fmt::format("the kernel {} is larger than the padded image {}",
                                         to_string(weight), to_string(x))});
    }
    w.out[i] = room / w.stride[i] + 1;
    shapes.y.push_back(w.out[i]);
  }
  return all;
}

Shapes forward_shapes(const Call& call) {
  check_dims(call, 0, 4);
  check_dims(call, 1, 4);
  return {.x = call.in[0].shape(), .weight = call.in[1].shape(), .y = {}};
}

/// Shapes of conv2d_grad_input(dy, weight).
Shapes input_shapes(const Call& call, const ConvGradientArgs& s) {
  check_dims(call, 0, 4);
  check_dims(call, 1, 4);
  const Dims& weight = call.in[1].shape();
  return {.x = {call.in[0].shape()[0], checked_multiply(weight[1], s.groups, call.op.name),
                s.size[0], s.size[1]},
          .weight = weight,
          .y = {}};
}

/// Shapes of conv2d_grad_weight(dy, x).
Shapes weight_shapes(const Call& call, const ConvGradientArgs& s) {
  check_dims(call, 0, 4);
  check_dims(call, 1, 4);
  const Dims& x = call.in[1].shape();
  return {
      .x = x, .weight = {call.in[0].shape()[1], x[1] / s.groups, s.size[0], s.size[1]}, .y = {}};
}

void infer(const Call& call, ResultShapes& out) {
  Shapes shapes = forward_shapes(call);
  check_one_type(call);
  operands::check_floating(call.op.name, call.in[0]);
  check_shape(call, 2, {shapes.weight[0]});
  fitted(call, checked_args<ConvArgs>(call), shapes);
  out.push_back({shapes.y, call.in[0].dtype()});
}

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto s = checked_args<ConvArgs>(call);
  Shapes shapes = forward_shapes(call);
  const kernels::Convolutions shape = fitted(call, s, shapes);
  const Tensor x = contiguous_operand(w, call.in[0]);
  const Tensor weight = contiguous_operand(w, call.in[1]);
  if (out[0].numel() == 0) {
    return;
  }
  if (const Tensor& bias = call.in[2]) {
    const Tensor row = contiguous_operand(w, bias);
    if (!w.counts()) {
      copy_into(out[0],
                expanded_operand(reshaped_operand(row, {row.shape()[0], 1, 1}), out[0].shape()));
    }
  }
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    kernels::convolve(w, shape, pointer<T>(w, x), pointer<T>(w, weight), pointer<T>(w, out[0]),
                      call.in[2].defined());
  });
}

/// Whether each rank gets whole groups, whose channels are dim 1 of operand 0, dim `dim` of operand
/// 1 and a bias, when all are cut as finely as the finest.
bool groups_divide(const RuleContext& context, std::int64_t groups, int dim) {
  const auto in = context.call.in;
  const std::int64_t of_bias = in.size() > 2 && in[2] ? context.shards_of(2, 0) : 1;
  return groups > 1 &&
         groups % std::max({context.shards_of(0, 1), context.shards_of(1, dim), of_bias}) == 0;
}

/// The local call's groups are found in the local channels.
template <class A>
Attributes localize(const LocalContext& context) {
  A s = context.call.args<A>();
  if (s.groups > 1) {
    s.groups = s.groups * local_shape(*context.in[0])[1] / context.in[0]->shape[1];
  }
  return s;
}

void rule(const RuleContext& context, Strategies& strategies) {
  const std::int64_t groups = checked_args<ConvArgs>(context.call).groups;
  strategies.push_back(strategy({Shard(0), Replicate(), Replicate()}, {Shard(0)}));
  if (groups == 1) {
    strategies.push_back(strategy({Replicate(), Shard(0), Shard(0)}, {Shard(1)}));
    strategies.push_back(strategy({Shard(1), Shard(1), Partial()}, {Partial()}));
  } else if (groups_divide(context, groups, 0)) {
    strategies.push_back(strategy({Shard(1), Shard(0), Shard(0)}, {Shard(1)}));
  }
  pass_partial(context, strategies, 0b101);
  pass_partial(context, strategies, 0b110);
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);
const Op& conv_op = register_op<ConvArgs>({
    .schema = "conv2d(x, weight, bias?)",
    .infer = infer,
    .cpu = in_workspace<cpu>,
    .workspace = workspace_of<cpu>,
    .rule = rule,
    .localize = localize<ConvArgs>,
    .flops = kernel_flops<2, 1>,
    .backward = backward,
    .saves_inputs = 0b011,
    .gradients_apart = true,
    .about = "Images [N, C, H, W] convolved with kernels [O, C / groups, kh, kw], plus bias.",
});

// Its gradient with respect to x

void input_infer(const Call& call, ResultShapes& out) {
  const auto s = checked_args<ConvGradientArgs>(call);
  Shapes shapes = input_shapes(call, s);
  check_one_type(call);
  fitted(call, s, shapes);
  check_shape(call, 0, shapes.y);
  out.push_back({shapes.x, call.in[0].dtype()});
}

void input_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto s = checked_args<ConvGradientArgs>(call);
  Shapes shapes = input_shapes(call, s);
  const kernels::Convolutions shape = fitted(call, s, shapes);
  const Tensor dy = contiguous_operand(w, call.in[0]);
  const Tensor weight = contiguous_operand(w, call.in[1]);
  const Tensor sums = sums_for(w, out[0]);
  visit_floating(dy.dtype(), call.op.name, [&]<class T>(T) {
    kernels::convolve_grad_input(w, shape, pointer<T>(w, dy), pointer<T>(w, weight),
                                 pointer<kernels::Compute<T>>(w, sums));
  });
  if (w.counts()) {
    return;
  }
  convert_into(out[0], sums);
}

void input_rule(const RuleContext& context, Strategies& strategies) {
  const std::int64_t groups = checked_args<ConvGradientArgs>(context.call).groups;
  strategies.push_back(strategy({Shard(0), Replicate()}, {Shard(0)}));
  if (groups == 1) {
    strategies.push_back(strategy({Shard(1), Shard(0)}, {Partial()}));
    strategies.push_back(strategy({Replicate(), Shard(1)}, {Shard(1)}));
  } else if (groups_divide(context, groups, 0)) {
    strategies.push_back(strategy({Shard(1), Shard(0)}, {Shard(1)}));
  }
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void input_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out);

const Op& input_op = register_op<ConvGradientArgs>({
    .schema = "conv2d_grad_input(dy, weight)",
    .infer = input_infer,
    .cpu = in_workspace<input_cpu>,
    .workspace = workspace_of<input_cpu>,
    .rule = input_rule,
    .localize = localize<ConvGradientArgs>,
    .flops = kernel_flops<0, 1>,
    .backward = input_backward,
    .saves_inputs = saves_all,
    .about = "The gradient of conv2d with respect to x, with the given height and width.",
});

// Its gradient with respect to weight

void weight_infer(const Call& call, ResultShapes& out) {
  const auto s = checked_args<ConvGradientArgs>(call);
  Shapes shapes = weight_shapes(call, s);
  check_one_type(call);
  fitted(call, s, shapes);
  check_shape(call, 0, shapes.y);
  out.push_back({shapes.weight, call.in[0].dtype()});
}

void weight_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto s = checked_args<ConvGradientArgs>(call);
  Shapes shapes = weight_shapes(call, s);
  const kernels::Convolutions shape = fitted(call, s, shapes);
  const Tensor dy = contiguous_operand(w, call.in[0]);
  const Tensor x = contiguous_operand(w, call.in[1]);
  const Tensor sums = sums_for(w, out[0]);
  if (!w.counts()) {
    clear(sums);
  }
  visit_floating(dy.dtype(), call.op.name, [&]<class T>(T) {
    kernels::convolve_grad_weight(w, shape, pointer<T>(w, dy), pointer<T>(w, x),
                                  pointer<kernels::Compute<T>>(w, sums));
  });
  if (w.counts()) {
    return;
  }
  convert_into(out[0], sums);
}

void weight_rule(const RuleContext& context, Strategies& strategies) {
  const std::int64_t groups = checked_args<ConvGradientArgs>(context.call).groups;
  strategies.push_back(strategy({Shard(0), Shard(0)}, {Partial()}));
  if (groups == 1) {
    strategies.push_back(strategy({Shard(1), Replicate()}, {Shard(0)}));
    strategies.push_back(strategy({Replicate(), Shard(1)}, {Shard(1)}));
  } else if (groups_divide(context, groups, 1)) {
    strategies.push_back(strategy({Shard(1), Shard(1)}, {Shard(0)}));
  }
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void weight_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& weight_op = register_op<ConvGradientArgs>({
    .schema = "conv2d_grad_weight(dy, x)",
    .infer = weight_infer,
    .cpu = in_workspace<weight_cpu>,
    .workspace = workspace_of<weight_cpu>,
    .rule = weight_rule,
    .localize = localize<ConvGradientArgs>,
    .flops = kernel_flops<0, 2>,
    .backward = weight_backward,
    .saves_inputs = saves_all,
    .about = "The gradient of conv2d with respect to weight, with the given kernel size.",
});

// In each of the three, y is linear in x and in weight. A: the arguments of the operator whose
// gradient is computed.

template <class A>
Tensor gradient_of_x(const BackwardContext& context, const Tensor& dy, const Tensor& weight,
                     const Dims& x) {
  const auto s = context.args<A>();
  return call_one(input_op, {dy, weight},
                  ConvGradientArgs{s.stride, s.padding, s.dilation, s.groups, {x[2], x[3]}});
}

template <class A>
Tensor gradient_of_weight(const BackwardContext& context, const Tensor& dy, const Tensor& x,
                          const Dims& weight) {
  const auto s = context.args<A>();
  return call_one(
      weight_op, {dy, x},
      ConvGradientArgs{s.stride, s.padding, s.dilation, s.groups, {weight[2], weight[3]}});
}

/// Part of a gradient's gradient: convolution of the gradient with respect to dy.
Tensor convolved(const BackwardContext& context, const Tensor& x, const Tensor& weight) {
  const auto s = context.args<ConvGradientArgs>();
  return call_one(conv_op, {x, weight, {}}, ConvArgs{s.stride, s.padding, s.dilation, s.groups});
}

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = gradient_of_x<ConvArgs>(context, grads[0], context.in[1], context.in_shapes[0]);
  }
  if (context.needs(1)) {
    out[1] = gradient_of_weight<ConvArgs>(context, grads[0], context.in[0], context.in_shapes[1]);
  }
  if (context.needs(2)) {
    out[2] = sum(grads[0], {0, 2, 3});
  }
}

void input_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = convolved(context, grads[0], context.in[1]);
  }
  if (context.needs(1)) {
    out[1] = gradient_of_weight<ConvGradientArgs>(context, context.in[0], grads[0],
                                                  context.in_shapes[1]);
  }
}

void weight_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = convolved(context, context.in[1], grads[0]);
  }
  if (context.needs(1)) {
    out[1] =
        gradient_of_x<ConvGradientArgs>(context, context.in[0], grads[0], context.in_shapes[1]);
  }
}

Tensor convolve(const Tensor& x, const Tensor& weight, const Tensor& bias, const ConvArgs& s) {
  const bool alone = x && x.dims() == 3;
  const Tensor y = call_one(conv_op, {alone ? unsqueeze(x, 0) : x, weight, bias}, s);
  return alone ? squeeze(y, 0) : y;
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Convolution& settings) {
  return convolve(x, weight, bias,
                  {.stride = for_both_dims(settings.stride),
                   .padding = for_both_dims(settings.padding),
                   .dilation = for_both_dims(settings.dilation),
                   .groups = settings.groups});
}

}  // namespace tessera::ops
