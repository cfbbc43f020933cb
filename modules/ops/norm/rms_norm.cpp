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
  out.push_back({x.shape(), x.dtype()});
  out.push_back({without_last(x.shape()), statistics_type(x.dtype())});  // 1 / root mean square
}

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  const Tensor weight = contiguous_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  const double eps = call.args<NormArgs>().eps;
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    kernels::rms_norm_forward(out[1].numel(), x.shape().back(), pointer<T>(x), pointer<T>(weight),
                              eps, pointer<T>(out[0]), pointer<kernels::Compute<T>>(out[1]));
  });
}

void rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims() - 1; ++d) {
    strategies.push_back(strategy({Shard(d), Replicate()}, {Shard(d), Shard(d)}));
  }
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& rms_norm_op = register_op<NormArgs>({
    .schema = "rms_norm(x, weight?)",
    .infer = infer,
    .cpu = in_workspace<cpu>,
    .workspace = workspace_of_copies<cpu>,
    .element = [](const Call&) { return element_of<functions::RmsNorm>(); },
    .rule = rule,
    .backward = backward,
    .saves_inputs = saves_all,
    .saves_outputs = 0b10,
    .about = "x divided by its root mean square over the last dim, times weight.",
});

void grad_infer(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[1];
  check_rows(call, x);
  check_shape(call, 0, x.shape());
  check_type(call, 0, x.dtype());
  check_shape(call, 2, {x.shape().back()});
  check_type(call, 2, x.dtype());
  check_shape(call, 3, without_last(x.shape()));
  check_type(call, 3, statistics_type(x.dtype()));
  out.push_back({x.shape(), x.dtype()});
  out.push_back({Dims{x.shape().back()}, x.dtype()});
}

void grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor dy = contiguous_operand(w, call.in[0]);
  const Tensor x = contiguous_operand(w, call.in[1]);
  const Tensor weight = contiguous_operand(w, call.in[2]);
  const Tensor rstd = contiguous_operand(w, call.in[3]);
  const Tensor dweight = sums_for(w, out[1]);
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    using C = kernels::Compute<T>;
    kernels::rms_norm_backward(w, rstd.numel(), x.shape().back(), pointer<T>(w, dy),
                               pointer<T>(w, x), pointer<T>(w, weight), pointer<C>(w, rstd),
                               pointer<T>(w, out[0]), pointer<C>(w, dweight));
  });
  if (w.counts()) {
    return;
  }
  convert_into(out[1], dweight);
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[1].dims() - 1; ++d) {
    strategies.push_back(
        strategy({Shard(d), Shard(d), Replicate(), Shard(d)}, {Shard(d), Partial()}));
  }
  pass_partial(context, strategies, 0b0001);
}

const Op& rms_norm_backward_op = register_op({
    .schema = "rms_norm_backward(dy, x, weight?, rstd)",
    .infer = grad_infer,
    .cpu = in_workspace<grad_cpu>,
    .workspace = workspace_of<grad_cpu>,
    .element = [](const Call&) { return element_of<functions::RmsNormBackward>(); },
    .rule = grad_rule,
    .backward = [](const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) { norm_second_derivative(context, grads, out, false); },
    .saves_inputs = saves_all,
    .about = "The gradients of rms_norm with respect to x and weight.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  const Tensor& rstd = context.out[1];
  if (grads[0]) {
    const Tensors d = call(rms_norm_backward_op, {grads[0], x, context.in[1], rstd});
    out[0] = d[0];
    if (context.needs(1)) {
      out[1] = d[1];
    }
  }
  if (grads[1] && context.needs(0)) {  // a gradient is differentiated again
    add_to(out[0], of_statistics(x, {}, rstd, {}, grads[1]));
  }
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return call_one(rms_norm_op, {x, weight}, NormArgs{.eps = eps});
}

}  // namespace tessera::ops
