module;
#include <cstdint>
#include <span>

#include "norm/kernels/norm_rows.hpp"
#include "norm/kernels/norm.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

struct NormArgs {
  Dynamic<double> eps;
};

void check_rows(const Call& call, const Tensor& x) {
  if (x.dims() == 0) {
    refuse(call, {.wrong = "x has no dims", .expected = "at least 1"});
  }
}

void infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  check_rows(call, x);
  check_one_type(call);
  check_shape(call, 1, {x.shape().back()});
  check_shape(call, 2, {x.shape().back()});
  const ResultShape rows{without_last(x.shape()), statistics_type(x.dtype())};
  out.push_back({x.shape(), x.dtype()});
  out.push_back(rows);  // means
  out.push_back(rows);  // 1 / standard deviations
}

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const ContiguousOperand x(w, call.in[0]);
  const ContiguousOperand weight(w, call.in[1]);
  const ContiguousOperand bias(w, call.in[2]);
  if (w.counts()) {
    return;
  }
  const double eps = call.args<NormArgs>().eps;
  visit_floating(call.in[0].dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    kernels::layer_norm_forward(out[1].numel(), call.in[0].shape().back(), pointer<T>(*x),
                                pointer<T>(*weight), pointer<T>(*bias), eps, pointer<T>(out[0]),
                                pointer<C>(out[1]), pointer<C>(out[2]));
  });
}

void rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims() - 1; ++d) {
    strategies.push_back(
        strategy({Shard(d), Replicate(), Replicate()}, {Shard(d), Shard(d), Shard(d)}));
  }
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& layer_norm_op = register_op<NormArgs>({
    .schema = "layer_norm(x, weight?, bias?)",
    .infer = infer,
    .cpu = in_workspace<cpu>,
    .workspace = workspace_of_copies<cpu>,
    .element = [](const Call&) { return element_of<functions::LayerNorm>(); },
    .rule = rule,
    .backward = backward,
    .saves_inputs = 0b011,
    .saves_outputs = 0b110,
    .about = "(x - mean) / std over the last dim, times weight, plus bias.",
});

void grad_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[1];
  check_rows(call, x);
  check_shape(call, 0, x.shape());
  check_type(call, 0, x.dtype());
  check_shape(call, 2, {x.shape().back()});
  check_type(call, 2, x.dtype());
  for (const std::size_t statistics : {3U, 4U}) {
    check_shape(call, statistics, without_last(x.shape()));
    check_type(call, statistics, statistics_type(x.dtype()));
  }
  out.push_back({x.shape(), x.dtype()});
  out.push_back({Dims{x.shape().back()}, x.dtype()});
  out.push_back({Dims{x.shape().back()}, x.dtype()});
}

void grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor dy = contiguous_operand(w, call.in[0]);
  const Tensor x = contiguous_operand(w, call.in[1]);
  const Tensor weight = contiguous_operand(w, call.in[2]);
  const Tensor mean = contiguous_operand(w, call.in[3]);
  const Tensor rstd = contiguous_operand(w, call.in[4]);
  const Tensor dweight = sums_for(w, out[1]);
  const Tensor dbias = sums_for(w, out[2]);
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    kernels::layer_norm_backward(w, rstd.numel(), x.shape().back(), pointer<T>(w, dy),
                                 pointer<T>(w, x), pointer<T>(w, weight), pointer<C>(w, mean),
                                 pointer<C>(w, rstd), pointer<T>(w, out[0]), pointer<C>(w, dweight),
                                 pointer<C>(w, dbias));
  });
  if (w.counts()) {
    return;
  }
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
    .cpu = in_workspace<grad_cpu>,
    .workspace = workspace_of<grad_cpu>,
    .element = [](const Call&) { return element_of<functions::LayerNormBackward>(); },
    .rule = grad_rule,
    .backward = [](const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) { norm_second_derivative(context, grads, out, true); },
    .saves_inputs = saves_all,
    .about = "The gradients of layer_norm with respect to x, weight and bias.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  const Tensor& mean = context.out[1];
  const Tensor& rstd = context.out[2];
  if (grads[0]) {
    const Tensors d = call(layer_norm_backward_op, {grads[0], x, context.in[1], mean, rstd});
    for (std::size_t i = 0; i < 3; ++i) {
      if (context.needs(i)) {
        out[i] = d[i];
      }
    }
  }
  if ((grads[1] || grads[2]) && context.needs(0)) {  // a gradient is differentiated again
    add_to(out[0], of_statistics(x, mean, rstd, grads[1], grads[2]));
  }
}

/// Over the last dim, which stays.
Tensor mean_of_rows(const Tensor& x) { return mean(x, {-1}, true); }

}  // namespace

// A row is n = (x - mean) r, and its gradient dx = r (g - <g> - n <g n>) with g = dy weight, <> the
// mean over the row; without a mean there is no <g>. In g that is its own transpose. What depends
// on x beyond n, by mean and r, takes the way of operands of their own, back to what made them.
void norm_second_derivative(const BackwardContext& context, std::span<const Tensor> grads,
                            std::span<Tensor> out, bool centred) {
  const std::size_t at_rstd = centred ? 4 : 3;
  const DType wide = context.in[at_rstd].dtype();
  const Tensor dy = cast(context.in[0], wide);
  const Tensor x = cast(context.in[1], wide);
  const Tensor weight = context.in[2] ? cast(context.in[2], wide) : Tensor();
  const Tensor rstd = unsqueeze(context.in[at_rstd], -1);
  const Tensor distance = centred ? sub(x, unsqueeze(context.in[3], -1)) : x;
  const Tensor normal = mul(distance, rstd);
  Tensor of_dy;
  Tensor of_weight;
  Tensor of_normal;
  Tensor of_rstd;
  if (grads[0]) {
    const Tensor u = cast(grads[0], wide);
    const Tensor g = weight ? mul(dy, weight) : dy;
    const Tensor u_along = mean_of_rows(mul(u, normal));
    const Tensor g_along = mean_of_rows(mul(g, normal));
    Tensor rest = sub(u, mul(normal, u_along));
    Tensor slope = sub(mean_of_rows(mul(u, g)), mul(u_along, g_along));
    if (centred) {
      const Tensor u_mean = mean_of_rows(u);
      rest = sub(rest, u_mean);
      slope = sub(slope, mul(u_mean, mean_of_rows(g)));
    }
    const Tensor of_g = mul(rest, rstd);
    of_dy = weight ? mul(of_g, weight) : of_g;
    if (context.needs(2)) {
      of_weight = operands::sum_to(mul(of_g, dy), weight.shape());
    }
    of_normal = neg(mul(add(mul(u, g_along), mul(g, u_along)), rstd));
    of_rstd = mul_scalar(slope, static_cast<double>(x.shape().back()));
  }
  if (grads[1]) {
    const Tensor u = cast(grads[1], wide);
    add_to(of_dy, mul(normal, u));
    add_to(of_normal, mul(dy, u));
  }
  if (centred && grads[2]) {
    add_to(of_dy, expand(cast(grads[2], wide), x.shape()));
  }
  Tensor of_x;
  Tensor of_mean;
  if (of_normal) {
    of_x = mul(of_normal, rstd);
    add_to(of_rstd, sum(mul(of_normal, distance), {-1}, true));
    of_mean = centred && context.needs(3) ? neg(sum(of_x, {-1})) : Tensor();
  }
  const auto give = [&](std::size_t i, const Tensor& value) {
    if (context.needs(i) && value) {
      out[i] = cast(value, context.in_dtypes[i]);
    }
  };
  give(0, of_dy);
  give(1, of_x);
  give(2, of_weight);
  if (centred) {
    give(3, of_mean);
  }
  give(at_rstd, of_rstd ? squeeze(of_rstd, -1) : of_rstd);
}

/// d mean / dx = 1 / count, d r / dx = -r^2 n / count.
Tensor of_statistics(const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& of_mean,
                     const Tensor& of_rstd) {
  const double share = 1 / static_cast<double>(x.shape().back());
  const Tensor wide = cast(x, rstd.dtype());
  Tensor gained;
  if (of_rstd) {
    const Tensor distance = mean ? sub(wide, unsqueeze(mean, -1)) : wide;
    const Tensor factor = mul(of_rstd, mul(square(rstd), rstd));
    gained = mul(distance, unsqueeze(mul_scalar(factor, -share), -1));
  }
  if (of_mean) {
    add_to(gained, expand(unsqueeze(mul_scalar(of_mean, share), -1), x.shape()));
  }
  return cast(gained, x.dtype());
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return call_one(layer_norm_op, {x, weight, bias}, NormArgs{.eps = eps});
}

}  // namespace tessera::ops
