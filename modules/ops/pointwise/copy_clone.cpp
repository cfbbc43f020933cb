// Memory copied: copy_, clone.
module;
#include <cstddef>
#include <span>

#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

void infer_like(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void clone_cpu(const Call& call, std::span<Tensor> out) {
  operands::copy_elements(call.in[0], out[0]);
}

void infer_copy(const Call& call, ResultShapes& out) {
  operands::check_broadcasts_to("copy_", call.in[1].shape(), call.in[0].shape());
  infer_like(call, out);
}

void copy_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor& into = out[0];
  operands::check_broadcasts_to("copy_", call.in[1].shape(), into.shape());
  Tensor from = call.in[1];
  if (from.dtype() != into.dtype()) {
    from = converted_operand(w, from, into.dtype());
  }
  if (!w.counts()) {
    operands::copy_elements(from, into);
  }
}

/// Only a copy with a cast needs memory.
std::size_t copy_workspace(const Call& call, std::span<const Tensor> out) {
  return call.in[1].dtype() == out[0].dtype() ? 0 : workspace_of<copy_cpu>(call, out);
}

void copy_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  if (context.call.in[0].dtype() == context.call.in[1].dtype()) {
    rules::moves_elements(context, strategies);
  }
}

void clone_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  rules::moves_elements(context, strategies);
}

void clone_backward(const BackwardContext&, std::span<const Tensor> grads, std::span<Tensor> out) {
  out[0] = grads[0];
}

const Op& copy_op = register_op({.schema = "copy_(into, from)",
                                 .infer = infer_copy,
                                 .cpu = in_workspace<copy_cpu>,
                                 .workspace = copy_workspace,
                                 .rule = copy_rule,
                                 .in_place = true,
                                 .moves_elements = true,
                                 .about = "Writes `from`, cast and broadcast, to `into`."});

const Op& clone_op = register_op({.schema = "clone(x)",
                                  .infer = infer_like,
                                  .cpu = clone_cpu,
                                  .rule = clone_rule,
                                  .backward = clone_backward,
                                  .moves_elements = true,
                                  .about = "A contiguous copy."});

}  // namespace

Tensor copy_(const Tensor& into, const Tensor& from) {
  operands::given("copy_", "into", into);
  operands::given("copy_", "from", from);
  return call_one(copy_op, {into, to_device(from, into.device())});
}

Tensor clone(const Tensor& x) { return call_one(clone_op, {x}); }

}  // namespace tessera::ops
