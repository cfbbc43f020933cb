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
import :linear_call;

namespace tessera::ops {

using rules::strategy;

Product rows_times(Workspace& w, const Tensor& x, const Tensor& weight, bool weight_transposed,
                   const Tensor& y) {
  Product product{.a = rows_operand(w, x), .b = matrix_operand(w, weight)};
  const std::int64_t n = y.shape().back();
  kernels::Gemm& shape = product.shape;
  shape.k = x.shape().back();
  shape.m = n == 0 ? 0 : y.numel() / n;
  shape.n = n;
  shape.lda = product.a.stride;
  shape.ldb = product.b.stride;
  shape.trans_b = weight_transposed != product.b.transposed;
  shape.ldc = n;
  return product;
}

Product columns_times(Workspace& w, const Tensor& dy, const Tensor& x, const Tensor& y) {
  Product product{.a = rows_operand(w, dy), .b = rows_operand(w, x)};
  kernels::Gemm& shape = product.shape;
  shape.trans_a = true;
  shape.m = y.shape()[0];
  shape.n = y.shape()[1];
  shape.k = without_last(dy.shape()).product();
  shape.lda = product.a.stride;
  shape.ldb = product.b.stride;
  shape.ldc = shape.n;
  return product;
}

Dims rows_shape(const Call& call, int results) {
  const Tensor& x = call.in[0];
  check_one_type(call);
  check_dims(call, 1, 2);
  const Dims& weight = call.in[1].shape();
  const std::int64_t wanted = weight[1 - results];
  if (x.dims() == 0 || x.shape().back() != wanted) {
    refuse(call, {.wrong = fmt::format("the last dim of {} does not match weight",
                                       call.op.operands[0].name),
                  .expected = fmt::format("{}", wanted),
                  .got = fmt::format("{} x {}", to_string(x.shape()), to_string(weight))});
  }
  Dims shape = x.shape();
  shape.back() = weight[results];
  return shape;
}

Dims columns_shape(const Call& call) {
  check_one_type(call);
  const Dims& dy = call.in[0].shape();
  const Dims& x = call.in[1].shape();
  if (dy.empty() || x.empty() || without_last(dy) != without_last(x)) {
    refuse(call, {.wrong = "dy and x have different rows",
                  .got = fmt::format("{} and {}", to_string(dy), to_string(x))});
  }
  return {dy.back(), x.back()};
}

void rows_strategies(const RuleContext& context, Strategies& strategies, int results,
                     const MayShare& may_share) {
  // A bias is added once: it must be a term of the sum too.
  const bool has_bias = context.call.in.size() == 3;
  const auto add = [&](Placement x, Placement weight, Placement bias, Placement y) {
    strategies.push_back(has_bias ? strategy({x, weight, bias}, {y}) : strategy({x, weight}, {y}));
  };
  const int last = context.call.in[0].dims() - 1;
  for (int d = 0; d < last; ++d) {
    add(Shard(d), Replicate(), Replicate(), Shard(d));
  }
  if (may_share(1, results)) {
    add(Replicate(), Shard(results), Shard(0), Shard(last));
  }
  if (may_share(0, last) && may_share(1, 1 - results)) {
    add(Shard(last), Shard(1 - results), Partial(), Partial());
  }
}

void columns_strategies(const RuleContext& context, Strategies& strategies,
                        const MayShare& may_share) {
  const int last = context.call.in[0].dims() - 1;
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Shard(d), Shard(d)}, {Partial()}));
  }
  if (may_share(0, last)) {
    strategies.push_back(strategy({Shard(last), Replicate()}, {Shard(0)}));
  }
  if (may_share(1, last)) {
    strategies.push_back(strategy({Replicate(), Shard(last)}, {Shard(1)}));
  }
}

namespace {

/// y [rows, n] = x [rows, k] times op(w), plus y's own content when `accumulate`.
void multiply_rows(Workspace& w, const Call& call, const Tensor& x, const Tensor& weight,
                   bool weight_transposed, const Tensor& y, bool accumulate) {
  Product product = rows_times(w, x, weight, weight_transposed, y);
  product.shape.accumulate = accumulate;
  multiply(w, call, product.shape, product.a.tensor, product.b.tensor, y);
}

bool any_may_share(std::size_t, int) { return true; }

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

// linear

void linear_infer(const Call& call, ResultShapes& out) {
  const Dims shape = rows_shape(call, 0);
  check_shape(call, 2, {shape.back()});
  out.push_back({shape, call.in[0].dtype()});
}

void linear_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor& bias = call.in[2];
  if (bias && !w.counts()) {
    copy_into(out[0], expanded_operand(bias, out[0].shape()));
  }
  multiply_rows(w, call, call.in[0], call.in[1], true, out[0], bias.defined());
}

void rows_rule(const RuleContext& context, Strategies& strategies, int results) {
  const bool has_bias = context.call.in.size() == 3;
  rows_strategies(context, strategies, results, any_may_share);
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
    .gradients_apart = true,
    .about = "x times weight transposed, plus bias.",
});

// Its gradient with respect to x: dy [..., out] times weight [out, in].

void grad_input_infer(const Call& call, ResultShapes& out) {
  out.push_back({rows_shape(call, 1), call.in[0].dtype()});
}

void grad_input_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  multiply_rows(w, call, call.in[0], call.in[1], false, out[0], false);
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
  out.push_back({columns_shape(call), call.in[0].dtype()});
}

/// contiguous y [out, in] = dy transposed times x, plus y's own content when `accumulate`.
void multiply_columns(Workspace& w, const Call& call, const Tensor& dy, const Tensor& x,
                      const Tensor& y, bool accumulate) {
  Product product = columns_times(w, dy, x, y);
  product.shape.accumulate = accumulate;
  multiply(w, call, product.shape, product.a.tensor, product.b.tensor, y);
}

void grad_weight_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  multiply_columns(w, call, call.in[0], call.in[1], out[0], false);
}

void grad_weight_rule(const RuleContext& context, Strategies& strategies) {
  columns_strategies(context, strategies, any_may_share);
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

// Both, added to a tensor that is there: sum [..., in] += dy times weight, and sum [out, in] += dy
// transposed times x. The written tensor has the placement that the product has.

/// Errors: the factors have different types, or the sum has another type than they and their sums.
void check_sum_types(const Call& call) {
  check_type(call, 2, call.in[1].dtype());
  if (call.in[0].dtype() != call.in[1].dtype()) {
    check_type(call, 0, summed_type(call.in[1].dtype()));
  }
}

void grad_input_sum_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 2, 2);
  const Dims& dy = call.in[1].shape();
  const Dims& weight = call.in[2].shape();
  if (dy.empty() || dy.back() != weight[0]) {
    refuse(call, {.wrong = "the last dim of dy does not match weight",
                  .expected = fmt::format("{}", weight[0]),
                  .got = fmt::format("{} x {}", to_string(dy), to_string(weight))});
  }
  Dims shape = dy;
  shape.back() = weight[1];
  check_shape(call, 0, shape);
  check_sum_types(call);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void grad_input_sum_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  ResultShapes checked;
  grad_input_sum_infer(call, checked);
  update_contiguous(w, out[0], [&](const Tensor& sum) {
    multiply_rows(w, call, call.in[1], call.in[2], false, sum, true);
  });
}

void grad_input_sum_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[1].dims() - 1;
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Shard(d), Shard(d), Replicate()}, {Shard(d)}));
  }
  strategies.push_back(strategy({Shard(last), Replicate(), Shard(1)}, {Shard(last)}));
  strategies.push_back(strategy({Partial(), Shard(last), Shard(0)}, {Partial()}));
  pass_partial(context, strategies, 0b011);
  pass_partial(context, strategies, 0b101);
}

/// A program's instruction that writes into its operand has no result.
double grad_input_sum_flops(const Call& call, std::span<const Tensor>) {
  return product_flops(call.in[0].numel(), call.in[1].shape().back());
}

const Op& grad_input_sum_op = register_op({
    .schema = "linear_grad_input_(sum, dy, weight)",
    .infer = grad_input_sum_infer,
    .cpu = in_workspace<grad_input_sum_cpu>,
    .workspace = workspace_of<grad_input_sum_cpu>,
    .rule = grad_input_sum_rule,
    .flops = grad_input_sum_flops,
    .in_place = true,
    .about = "Adds the gradient of linear with respect to x to a tensor, in the product itself.",
});

void grad_weight_sum_infer(const Call& call, ResultShapes& out) {
  const Tensor& sum = call.in[0];
  const Tensor& dy = call.in[1];
  const Tensor& x = call.in[2];
  check_dims(call, 0, 2);
  if (dy.dims() == 0 || x.dims() == 0 || without_last(dy.shape()) != without_last(x.shape())) {
    refuse(call, {.wrong = "dy and x have different rows",
                  .got = fmt::format("{} and {}", to_string(dy.shape()), to_string(x.shape()))});
  }
  check_shape(call, 0, Dims{dy.shape().back(), x.shape().back()});
  check_sum_types(call);
  out.push_back({sum.shape(), sum.dtype()});
}

void grad_weight_sum_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  ResultShapes checked;
  grad_weight_sum_infer(call, checked);
  update_contiguous(w, out[0], [&](const Tensor& sum) {
    multiply_columns(w, call, call.in[1], call.in[2], sum, true);
  });
}

void grad_weight_sum_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[1].dims() - 1;
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Partial(), Shard(d), Shard(d)}, {Partial()}));
  }
  strategies.push_back(strategy({Shard(0), Shard(last), Replicate()}, {Shard(0)}));
  strategies.push_back(strategy({Shard(1), Replicate(), Shard(last)}, {Shard(1)}));
  pass_partial(context, strategies, 0b011);
  pass_partial(context, strategies, 0b101);
}

double grad_weight_sum_flops(const Call& call, std::span<const Tensor>) {
  return product_flops(call.in[0].numel(), without_last(call.in[1].shape()).product());
}

const Op& grad_weight_sum_op = register_op({
    .schema = "linear_grad_weight_(sum, dy, x)",
    .infer = grad_weight_sum_infer,
    .cpu = in_workspace<grad_weight_sum_cpu>,
    .workspace = workspace_of<grad_weight_sum_cpu>,
    .rule = grad_weight_sum_rule,
    .flops = grad_weight_sum_flops,
    .in_place = true,
    .about =
        "Adds the gradient of linear with respect to weight to a tensor, in the product itself.",
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
  if (step_context().feature_blocks > 1) {
    return linear_in_blocks(x, weight, bias);
  }
  return call_one(linear_op, {x, weight, bias});
}

Tensor linear_grad_input(const Tensor& dy, const Tensor& weight) {
  return call_one(grad_input_op, {dy, weight});
}

Tensor linear_grad_weight(const Tensor& dy, const Tensor& x) {
  return call_one(grad_weight_op, {dy, x});
}

void linear_grad_weight_(const Tensor& sum, const Tensor& dy, const Tensor& x) {
  call_one(grad_weight_sum_op, {sum, dy, x});
}

}  // namespace tessera::ops
