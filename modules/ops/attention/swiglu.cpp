module;
#include "attention/kernels/swiglu.hpp"

#include <cstdint>
#include <span>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

void same_dims(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.out[0].shape.size(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

void infer(const Call& call, ResultShapes& out) {
  check_one_type(call);
  check_shape(call, 1, call.in[0].shape());
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

std::int64_t width(const Tensor& x) { return x.dims() == 0 ? 1 : x.shape().back(); }
std::int64_t rows(const Tensor& x) { return width(x) == 0 ? 0 : x.numel() / width(x); }

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Matrix gate = rows_operand(w, call.in[0]);  // the halves of one product need no copy
  const Matrix up = rows_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  visit_floating(out[0].dtype(), call.op.name, [&]<class T>(T) {
    kernels::swiglu_forward(rows(out[0]), width(out[0]), pointer<T>(gate.tensor), gate.stride,
                            pointer<T>(up.tensor), up.stride, pointer<T>(out[0]));
  });
}

void rule(const RuleContext& context, Strategies& strategies) {
  same_dims(context, strategies);
  pass_partial(context, strategies, 0b10);  // linear in up
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& swiglu_op = register_op({
    .schema = "swiglu(gate, up)",
    .infer = infer,
    .cpu = in_workspace<cpu>,
    .workspace = workspace_of<cpu>,
    .rule = rule,
    .backward = backward,
    .saves_inputs = saves_all,
    .about = "silu(gate) times up.",
});

void grad_infer(const Call& call, ResultShapes& out) {
  check_one_type(call);
  for (std::size_t i = 1; i < 3; ++i) {
    check_shape(call, i, call.in[0].shape());
    out.push_back({call.in[i].shape(), call.in[i].dtype()});
  }
}

void grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor dy = contiguous_operand(w, call.in[0]);
  const Tensor gate = contiguous_operand(w, call.in[1]);  // the kernel gives dgate gate's strides
  const Tensor up = contiguous_operand(w, call.in[2]);
  if (w.counts()) {
    return;
  }
  const std::int64_t n = width(dy);
  visit_floating(dy.dtype(), call.op.name, [&]<class T>(T) {
    kernels::swiglu_backward(rows(dy), n, pointer<T>(dy), pointer<T>(gate), n, pointer<T>(up), n,
                             pointer<T>(out[0]), pointer<T>(out[1]));
  });
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  same_dims(context, strategies);
  pass_partial(context, strategies, 0b001);
  pass_partial(context, strategies, 0b100, 0b01);  // gate's gradient is linear in up
}

/// Gradient of swiglu's gradient, (dy up silu'(gate), dy silu(gate)).
void grad_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const Tensor& dy = context.in[0];
  const Tensor& gate = context.in[1];
  const Tensor& up = context.in[2];
  const Tensor s = sigmoid(gate);
  const Tensor other = add_scalar(neg(s), 1);  // 1 - s
  const Tensor slope = mul(s, add_scalar(mul(gate, other), 1));
  if (grads[0]) {
    const Tensor& g = grads[0];
    if (context.needs(0)) {
      add_to(out[0], mul(mul(g, up), slope));
    }
    if (context.needs(1)) {  // silu'' = s (1 - s) (2 + gate (1 - 2 s))
      const Tensor bend =
          mul(mul(s, other), add_scalar(mul(gate, add_scalar(mul_scalar(s, -2), 1)), 2));
      add_to(out[1], mul(mul(g, mul(dy, up)), bend));
    }
    if (context.needs(2)) {
      add_to(out[2], mul(mul(g, dy), slope));
    }
  }
  if (grads[1]) {
    const Tensor& g = grads[1];
    if (context.needs(0)) {
      add_to(out[0], mul(g, silu(gate)));
    }
    if (context.needs(1)) {
      add_to(out[1], mul(mul(g, dy), slope));
    }
  }
}

const Op& swiglu_backward_op = register_op({
    .schema = "swiglu_backward(dy, gate, up)",
    .infer = grad_infer,
    .cpu = in_workspace<grad_cpu>,
    .workspace = workspace_of<grad_cpu>,
    .rule = grad_rule,
    .backward = grad_backward,
    .saves_inputs = saves_all,
    .about = "The gradients of swiglu with respect to gate and up.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const Tensors d = call(swiglu_backward_op, {grads[0], context.in[0], context.in[1]});
  for (std::size_t i = 0; i < 2; ++i) {
    if (context.needs(i)) {
      out[i] = d[i];
    }
  }
}

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) { return call_one(swiglu_op, {gate, up}); }

}  // namespace tessera::ops
