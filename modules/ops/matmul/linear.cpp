// linear and its two gradients. Each takes [..., n] tensors as they are: no dim is flattened, so
// any leading dim may be sharded.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "matmul/kernels/gemm.hpp"
#include "matmul/kernels/plain_product.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

/// y [rows, n] = x [rows, k] times op(w), plus y's own content when `accumulate`.
void rows_times(Workspace& w, const Call& call, const Tensor& x, const Tensor& weight,
                bool weight_transposed, const Tensor& y, bool accumulate) {
  const Matrix rows = rows_operand(w, x);
  const Matrix columns = matrix_operand(w, weight);
  const std::int64_t n = y.shape().back();
  kernels::Gemm shape;
  shape.k = x.shape().back();
  shape.m = n == 0 ? 0 : y.numel() / n;
  shape.n = n;
  shape.lda = rows.stride;
  shape.ldb = columns.stride;
  shape.trans_b = weight_transposed != columns.transposed;
  shape.ldc = n;
  shape.accumulate = accumulate;
  multiply(w, call, shape, rows.tensor, columns.tensor, y);
}

/// Op::workspace: most small calls need none. `sums`: operand 0 has the elements of each sum in its
/// last dim, else in all others.
template <WorkspaceKernel kernel, bool sums = true>
std::size_t product_workspace(const Call& call, std::span<const Tensor> out) {
  const Tensor& a = call.in[0];
  const Tensor& y = out[0];
  const std::int64_t last = a.shape().back();
  if (y.dtype() == DType::f32 && last != 0 &&
      (a.impl()->keys & call.in[1].impl()->keys & dense_key) != 0 &&
      kernels::is_plain_product(a.numel() / last, last, sums ? y.shape().back() : y.shape()[1])) {
    return 0;
  }
  return workspace_of<kernel>(call, out);
}

void check_matching(const Call& call, std::int64_t wanted) {
  const Tensor& x = call.in[0];
  check_one_type(call);
  check_dims(call, 1, 2);
  if (x.dims() == 0 || x.shape().back() != wanted) {
    refuse(
        call,
        {.wrong = fmt::format("the last dim of {} does not match weight", call.op.operands[0].name),
         .expected = fmt::format("{}", wanted),
         .got = fmt::format("{} x {}", to_string(x.shape()), to_string(call.in[1].shape()))});
  }
}

// linear

void linear_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 1, 2);
  const Dims& weight = call.in[1].shape();
  check_matching(call, weight[1]);
  check_shape(call, 2, {weight[0]});
  Dims shape = call.in[0].shape();
  shape.back() = weight[0];
  out.push_back({shape, call.in[0].dtype()});
}

void linear_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor& bias = call.in[2];
  if (bias && !w.counts()) {
    copy_into(out[0], expanded_operand(bias, out[0].shape()));
  }
  rows_times(w, call, call.in[0], call.in[1], true, out[0], bias.defined());
}

/// x [..., n] times weight, whose dim `results` becomes the last one and whose other is summed
/// over; perhaps plus bias, which is added once: it must be a term of the sum too.
void rows_rule(const RuleContext& context, Strategies& strategies, int results) {
  const bool has_bias = context.call.in.size() == 3;
  const auto add = [&](Placement x, Placement weight, Placement bias, Placement y) {
    strategies.push_back(has_bias ? strategy({x, weight, bias}, {y}) : strategy({x, weight}, {y}));
  };
  const int last = context.call.in[0].dims() - 1;
  for (int d = 0; d < last; ++d) {
    add(Shard(d), Replicate(), Replicate(), Shard(d));
  }
  add(Replicate(), Shard(results), Shard(0), Shard(last));
  add(Shard(last), Shard(1 - results), Partial(), Partial());
  pass_partial(context, strategies, has_bias ? 0b101 : 0b01);
  pass_partial(context, strategies, has_bias ? 0b110 : 0b10);
}

void linear_rule(const RuleContext& context, Strategies& strategies) {
  rows_rule(context, strategies, 0);
}

void linear_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& linear_op = register_op({
    .schema = "linear(x, weight, bias?)",
    .infer = linear_infer,
    .cpu = in_workspace<linear_cpu>,
    .workspace = product_workspace<linear_cpu>,
    .rule = linear_rule,
    .flops = last_dim_flops<0>,
    .backward = linear_backward,
    .saves_inputs = 0b011,
    .about = "x times weight transposed, plus bias.",
});

// Its gradient with respect to x: dy [..., out] times weight [out, in].

void grad_input_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 1, 2);
  const Dims& weight = call.in[1].shape();
  check_matching(call, weight[0]);
  Dims shape = call.in[0].shape();
  shape.back() = weight[1];
  out.push_back({shape, call.in[0].dtype()});
}

void grad_input_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  rows_times(w, call, call.in[0], call.in[1], false, out[0], false);
}

void grad_input_rule(const RuleContext& context, Strategies& strategies) {
  rows_rule(context, strategies, 1);
}

void grad_input_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out);

const Op& grad_input_op = register_op({
    .schema = "linear_grad_input(dy, weight)",
    .infer = grad_input_infer,
    .cpu = in_workspace<grad_input_cpu>,
    .workspace = product_workspace<grad_input_cpu>,
    .rule = grad_input_rule,
    .flops = last_dim_flops<0>,
    .backward = grad_input_backward,
    .saves_inputs = saves_all,
    .about = "The gradient of linear with respect to x.",
});

// Its gradient with respect to weight: dy [..., out] transposed times x [..., in], over all rows.

void grad_weight_infer(const Call& call, ResultShapes& out) {
  check_one_type(call);
  const Dims& dy = call.in[0].shape();
  const Dims& x = call.in[1].shape();
  if (dy.empty() || x.empty() || without_last(dy) != without_last(x)) {
    refuse(call, {.wrong = "dy and x have different rows",
                  .got = fmt::format("{} and {}", to_string(dy), to_string(x))});
  }
  out.push_back({Dims{dy.back(), x.back()}, call.in[0].dtype()});
}

void grad_weight_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Matrix dy = rows_operand(w, call.in[0]);
  const Matrix x = rows_operand(w, call.in[1]);
  kernels::Gemm shape;
  shape.trans_a = true;
  shape.m = out[0].shape()[0];
  shape.n = out[0].shape()[1];
  shape.k = without_last(call.in[0].shape()).product();
  shape.lda = dy.stride;
  shape.ldb = x.stride;
  shape.ldc = shape.n;
  multiply(w, call, shape, dy.tensor, x.tensor, out[0]);
}

void grad_weight_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[0].dims() - 1;
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Shard(d), Shard(d)}, {Partial()}));
  }
  strategies.push_back(strategy({Shard(last), Replicate()}, {Shard(0)}));
  strategies.push_back(strategy({Replicate(), Shard(last)}, {Shard(1)}));
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void grad_weight_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out);

double grad_weight_flops(const Call& call, std::span<const Tensor> out) {
  return product_flops(out[0].numel(), without_last(call.in[0].shape()).product());
}

const Op& grad_weight_op = register_op({
    .schema = "linear_grad_weight(dy, x)",
    .infer = grad_weight_infer,
    .cpu = in_workspace<grad_weight_cpu>,
    .workspace = product_workspace<grad_weight_cpu, false>,
    .rule = grad_weight_rule,
    .flops = grad_weight_flops,
    .backward = grad_weight_backward,
    .saves_inputs = saves_all,
    .about = "The gradient of linear with respect to weight.",
});

// The three are one trilinear form: each is the gradient of the others.

void linear_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  const Tensor& dy = grads[0];
  if (context.needs(0)) {
    out[0] = call_one(grad_input_op, {dy, context.in[1]});
  }
  if (context.needs(1)) {
    out[1] = call_one(grad_weight_op, {dy, context.in[0]});
  }
  if (context.needs(2)) {
    Dims rows;
    for (int d = 0; d < dy.dims() - 1; ++d) {
      rows.push_back(d);
    }
    out[2] = rows.empty() ? dy : sum(dy, rows);  // no dims would mean all dims
  }
}

void grad_input_backward(const BackwardContext& context, std::span<const Tensor> grads,
                         std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = call_one(linear_op, {grads[0], context.in[1], Tensor()});
  }
  if (context.needs(1)) {
    out[1] = call_one(grad_weight_op, {context.in[0], grads[0]});
  }
}

void grad_weight_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = call_one(linear_op, {context.in[1], grads[0], Tensor()});
  }
  if (context.needs(1)) {
    out[1] = call_one(grad_input_op, {context.in[0], grads[0]});
  }
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return call_one(linear_op, {x, weight, bias});
}

}  // namespace tessera::ops
