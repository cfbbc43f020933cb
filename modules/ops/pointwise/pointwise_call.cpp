module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "pointwise/kernels/functions.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :pointwise_call;

namespace tessera::ops::elementwise {

void apply_binary(kernels::BinaryOp op, const Tensor& a, const Tensor& b, Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  const auto type = y.dtype();
  if (a.shape() == y.shape() && b.shape() == y.shape() && a.is_contiguous() && b.is_contiguous() &&
      y.is_contiguous()) {
    kernels::binary(op, type, y.numel(), a.raw_data(), b.raw_data(), y.raw_data());
    return;
  }
  kernels::binary_strided(op, type, y.shape().span(), a.raw_data(),
                          operands::broadcast_strides(a, y.shape()).span(), b.raw_data(),
                          operands::broadcast_strides(b, y.shape()).span(), y.raw_data(),
                          y.strides().span());
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

void apply_function(kernels::FunctionOp op, const Call& call, Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  std::array<Dims, 3> strides;
  std::array<kernels::Operand, 3> in;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    strides[i] = operands::broadcast_strides(call.in[i], y.shape());
    in[i] = {call.in[i].raw_data(), strides[i].span()};
  }
  std::array<double, 3> numbers{};
  std::ranges::transform(call.attributes.dynamic(), numbers.begin(),
                         ArgumentType<double>::from_word);
  kernels::function(op, y.dtype(), y.shape().span(), std::span(in).first(call.in.size()), numbers,
                    y.raw_data());
}

std::string unary_element(kernels::UnaryOp op) {
  return fmt::format("unary_value<static_cast<UnaryOp>({})>(a)", fmt::underlying(op));
}

std::string slope_element(kernels::UnaryOp op) {
  return fmt::format("unary_slope<static_cast<UnaryOp>({})>(a) * b", fmt::underlying(op));
}

std::string function_element(kernels::FunctionOp op, std::size_t operands, std::size_t numbers) {
  const auto given = [](const char* name, bool is_given) { return is_given ? name : "V{}"; };
  return fmt::format("function_of_lanes<static_cast<FunctionOp>({})>(a, {}, {}, {}, {}, {})",
                     fmt::underlying(op), given("b", operands > 1), given("c", operands > 2),
                     given("p", numbers > 0), given("q", numbers > 1), given("r", numbers > 2));
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

void infer_slope(const Call& call, ResultShapes& out) {
  check_one_type(call);
  check_shape(call, 1, call.in[0].shape());
  infer_floating_unary(call, out);
}

void slope_rule(const RuleContext& context, Strategies& strategies) {
  rules::pointwise(context, strategies);
  pass_partial(context, strategies, 0b10);
}

Tensor call_floating(const operands::PointwiseForms& forms, const Tensor& x) {
  operands::given(forms.op.name, "x", x);
  return call_one(forms.op, {is_floating(x.dtype()) ? x : cast(x, DType::f32)});
}

Tensor call_rounding(const operands::PointwiseForms& forms, const Tensor& x) {
  operands::given(forms.op.name, "x", x);
  return is_floating(x.dtype()) ? call_one(forms.op, {x}) : clone(x);
}

}  // namespace tessera::ops::elementwise
