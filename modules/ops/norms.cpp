// The length of a tensor as one vector: vector_norm, and squared_norm, which shards can share.
module;
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/pointwise.hpp"
#include "kernels/reduce.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

double sum_of_squares(const Tensor& operand) {
  const Tensor x = operands::contiguous(operand);
  return kernels::sum_of_squares(static_cast<kernels::DType>(x.dtype()), x.numel(), x.raw_data());
}

void norm_infer(const Call& call, ResultShapes& out) {
  operands::check_floating("vector_norm", call.in[0]);
  out.push_back({Dims{}, call.in[0].dtype()});
}

void norm_cpu(const Call& call, std::span<Tensor> out) {
  kernels::fill(static_cast<kernels::DType>(out[0].dtype()), 1,
                std::sqrt(sum_of_squares(call.in[0])), out[0].raw_data());
}

/// The root of a sum is not a sum of roots: whole operands only.
void norm_rule(const RuleContext&, Strategies&) {}

/// x / norm; 0 for a vector of zeros.
void norm_backward(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) {
  const Tensor& norm = context.out[0];
  const Tensor divisor = masked_fill(norm, eq(norm, zeros_like(norm)), 1);
  out[0] = mul(context.in[0], div(grads[0], divisor));
}

void squared_infer(const Call& call, ResultShapes& out) {
  operands::check_floating("squared_norm", call.in[0]);
  out.push_back({Dims{}, DType::f64});
}

void squared_cpu(const Call& call, std::span<Tensor> out) {
  *out[0].data<double>() = sum_of_squares(call.in[0]);
}

void squared_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(rules::strategy({Shard(d)}, {Partial()}));
  }
}

void squared_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const Tensor& x = context.in[0];
  out[0] = mul(x, cast(mul_scalar(grads[0], 2), x.dtype()));
}

const Op& norm_op = register_op({.schema = "vector_norm(x)",
                                 .infer = norm_infer,
                                 .cpu = norm_cpu,
                                 .rule = norm_rule,
                                 .backward = norm_backward,
                                 .saves_inputs = saves_all,
                                 .saves_outputs = saves_all,
                                 .about = "The Euclidean norm of all elements."});

const Op& squared_op = register_op({.schema = "squared_norm(x)",
                                    .infer = squared_infer,
                                    .cpu = squared_cpu,
                                    .rule = squared_rule,
                                    .backward = squared_backward,
                                    .saves_inputs = saves_all,
                                    .about = "The sum of squares of all elements, in f64."});

}  // namespace

Tensor vector_norm(const Tensor& x) { return call_one(norm_op, {x}); }
Tensor squared_norm(const Tensor& x) { return call_one(squared_op, {x}); }

}  // namespace tessera::ops
