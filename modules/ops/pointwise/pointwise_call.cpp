module;
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "pointwise/kernels/apply.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops::elementwise {
namespace {

constexpr std::size_t most_operands = 3;

bool lies_as(const Tensor& x, const Tensor& y) {
  return x.shape() == y.shape() && x.is_contiguous();
}

void apply_contiguous(const kernels::FunctionKernels& function, std::span<const Tensor> operands,
                      std::span<const double> numbers, const Tensor& y) {
  std::array<const void*, most_operands> in{};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    in[i] = pointer<void>(operands[i]);
  }
  kernels::apply(function, operands[0].dtype(), y.numel(), std::span(in).first(operands.size()),
                 numbers, pointer<void>(y));
}

}  // namespace

void apply_function(const kernels::FunctionKernels& function, const Call& call,
                    std::span<const double> numbers, const Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  bool contiguous = true;
  for (const Tensor& x : call.in) {
    contiguous = contiguous && lies_as(x, y);
  }
  if (contiguous) {
    apply_contiguous(function, call.in, numbers, y);
    return;
  }
  std::array<Dims, most_operands> strides;
  std::array<kernels::Operand, most_operands> in;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    strides[i] = operands::broadcast_strides(call.in[i], y.shape());
    in[i] = {pointer<void>(call.in[i]), strides[i].span()};
  }
  kernels::apply_strided(function, call.in[0].dtype(), y.shape().span(),
                         std::span(in).first(call.in.size()), numbers, pointer<void>(y));
}

void apply_to_copies(const kernels::FunctionKernels& function, const Call& call,
                     std::span<const double> numbers, const Tensor& y, Workspace& w) {
  std::array<Tensor, most_operands> in;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    in[i] = contiguous_operand(w, call.in[i]);
  }
  if (!w.counts()) {
    apply_contiguous(function, std::span(in).first(call.in.size()), numbers, y);
  }
}

void infer_function(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  Dims shape = call.in[0].shape();
  for (const Tensor& x : call.in.subspan(1)) {
    operands::check_same_type(call.op.name, call.in[0], x);
    shape = operands::broadcast_shape(call.op.name, shape, x.shape());
  }
  out.push_back({shape, call.in[0].dtype()});
}

void infer_floating_unary(const Call& call, ResultShapes& out) {
  operands::check_floating(call.op.name, call.in[0]);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

// log and sqrt are not among these functions: they make NaN of a maximum's terms below 0.
void monotone_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    strategies.push_back(rules::strategy({Partial(op)}, {Partial(op)}));
  }
}

void infer_gradient(const Call& call, ResultShapes& out) {
  check_one_type(call);
  check_shape(call, 1, call.in[0].shape());
  infer_floating_unary(call, out);
}

void gradient_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  pass_partial(context, strategies, 0b10);
}

}  // namespace tessera::ops::elementwise
