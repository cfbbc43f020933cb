// Products with vectors: mv, dot, outer.
module;
#include <fmt/format.h>

#include <cstddef>
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

using rules::strategy;

void check_extents(const Call& call, std::int64_t a, std::int64_t b) {
  check_one_type(call);
  if (a != b) {
    refuse(call, {.wrong = "the shapes do not match",
                  .got = fmt::format("{} x {}", to_string(call.in[0].shape()),
                                     to_string(call.in[1].shape()))});
  }
}

// mv

void mv_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 0, 2);
  check_dims(call, 1, 1);
  check_extents(call, call.in[0].shape()[1], call.in[1].shape()[0]);
  out.push_back({Dims{call.in[0].shape()[0]}, call.in[0].dtype()});
}

void mv_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  multiply(w, call, call.in[0], column_of(call.in[1]), column_of(out[0]), false);
}

void mv_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(0), Replicate()}, {Shard(0)}));
  strategies.push_back(strategy({Shard(1), Shard(0)}, {Partial()}));
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void mv_backward(const BackwardContext& context, std::span<const Tensor> grads,
                 std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = outer(grads[0], context.in[1]);
  }
  if (context.needs(1)) {
    out[1] = mv(transpose(context.in[0], 0, 1), grads[0]);
  }
}

const Op& mv_op = register_op({.schema = "mv(a, x)",
                               .infer = mv_infer,
                               .cpu = in_workspace<mv_cpu>,
                               .workspace = workspace_of<mv_cpu>,
                               .rule = mv_rule,
                               .flops = last_dim_flops<0>,
                               .backward = mv_backward,
                               .saves_inputs = saves_all,
                               .about = "A matrix times a vector."});

// dot

void dot_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 0, 1);
  check_dims(call, 1, 1);
  check_extents(call, call.in[0].shape()[0], call.in[1].shape()[0]);
  out.push_back({Dims{}, call.in[0].dtype()});
}

void dot_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  multiply(w, call, row_of(call.in[0]), column_of(call.in[1]), reshaped_operand(out[0], Dims{1, 1}),
           false);
}

void dot_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(0), Shard(0)}, {Partial()}));
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void dot_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (context.needs(i)) {
      out[i] = mul(context.in[1 - i], grads[0]);
    }
  }
}

const Op& dot_op = register_op({.schema = "dot(a, b)",
                                .infer = dot_infer,
                                .cpu = in_workspace<dot_cpu>,
                                .workspace = workspace_of<dot_cpu>,
                                .rule = dot_rule,
                                .flops = last_dim_flops<0>,
                                .backward = dot_backward,
                                .saves_inputs = saves_all,
                                .about = "The sum of the products of two vectors' elements."});

// outer

void outer_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 0, 1);
  check_dims(call, 1, 1);
  check_one_type(call);
  out.push_back({Dims{call.in[0].shape()[0], call.in[1].shape()[0]}, call.in[0].dtype()});
}

void outer_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  multiply(w, call, column_of(call.in[0]), row_of(call.in[1]), out[0], false);
}

void outer_rule(const RuleContext& context, Strategies& strategies) {
  strategies.push_back(strategy({Shard(0), Replicate()}, {Shard(0)}));
  strategies.push_back(strategy({Replicate(), Shard(0)}, {Shard(1)}));
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void outer_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = mv(grads[0], context.in[1]);
  }
  if (context.needs(1)) {
    out[1] = mv(transpose(grads[0], 0, 1), context.in[0]);
  }
}

const Op& outer_op = register_op({.schema = "outer(a, b)",
                                  .infer = outer_infer,
                                  .cpu = in_workspace<outer_cpu>,
                                  .workspace = workspace_of<outer_cpu>,
                                  .rule = outer_rule,
                                  .backward = outer_backward,
                                  .saves_inputs = saves_all,
                                  .about = "Each element of a vector times each of another."});

}  // namespace

Tensor mv(const Tensor& a, const Tensor& x) { return call_one(mv_op, {a, x}); }
Tensor dot(const Tensor& a, const Tensor& b) { return call_one(dot_op, {a, b}); }
Tensor outer(const Tensor& a, const Tensor& b) { return call_one(outer_op, {a, b}); }

}  // namespace tessera::ops
