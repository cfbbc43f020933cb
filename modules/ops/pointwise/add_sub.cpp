// a + alpha b and a - alpha b.
module;
#include <span>
#include <string>

#include "pointwise/kernels/pointwise.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct AddArgs {
  Dynamic<double> alpha;
};

void add_into(const Tensor& a, const Tensor& b, double alpha, Tensor& y) {
  if (y.numel() == 0) {
    return;
  }
  const bool plain = a.shape() == y.shape() && b.shape() == y.shape() && a.is_contiguous() &&
                     b.is_contiguous() && y.is_contiguous();
  if (plain && a.dtype() != DType::boolean) {
    kernels::add(y.dtype(), y.numel(), a.raw_data(), b.raw_data(), alpha, y.raw_data());
    return;
  }
  if (alpha == 1 || (alpha == -1 && a.dtype() != DType::boolean)) {
    kernels::binary_strided(
        alpha == 1 ? kernels::BinaryOp::add : kernels::BinaryOp::sub, y.dtype(), y.shape().span(),
        a.raw_data(), operands::broadcast_strides(a, y.shape()).span(), b.raw_data(),
        operands::broadcast_strides(b, y.shape()).span(), y.raw_data(), y.strides().span());
    return;
  }
  if (a.dtype() == DType::boolean) {
    fail({.thing = "add",
          .wrong = "bool operands cannot be scaled",
          .expected = "alpha 1",
          .advice = "cast them first"});
  }
  kernels::add_strided(y.dtype(), y.shape().span(), a.raw_data(),
                       operands::broadcast_strides(a, y.shape()).span(), b.raw_data(),
                       operands::broadcast_strides(b, y.shape()).span(), alpha, y.raw_data(),
                       y.strides().span());
}

void add_cpu(const Call& call, std::span<Tensor> out) {
  add_into(call.in[0], call.in[1], call.args<AddArgs>().alpha, out[0]);
}

void sub_cpu(const Call& call, std::span<Tensor> out) {
  add_into(call.in[0], call.in[1], -call.args<AddArgs>().alpha, out[0]);
}

std::string add_element(const Call&) { return "a + p * b"; }
std::string sub_element(const Call&) { return "a + -p * b"; }

void backward(const BackwardContext& context, const Tensor& g, const Number& alpha,
              std::span<Tensor> out) {
  if (context.needs(0)) {
    out[0] = operands::sum_to(g, context.in_shapes[0]);
  }
  if (context.needs(1)) {
    const Tensor summed = operands::sum_to(g, context.in_shapes[1]);
    const bool is_one = alpha.source() == 0 && alpha.value() == 1;
    out[1] = is_one ? summed : mul_scalar(summed, alpha);
  }
}

void add_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  backward(context, grads[0], context.args<AddArgs>().alpha, out);
}

void sub_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  backward(context, grads[0], -Number(context.args<AddArgs>().alpha), out);
}

const operands::PointwiseForms add_forms =
    operands::register_pointwise<AddArgs>({.schema = "add(a, b)",
                                           .infer = operands::infer_broadcast,
                                           .cpu = add_cpu,
                                           .element = add_element,
                                           .rule = rules::pointwise_linear,
                                           .backward = add_backward,
                                           .about = "a + alpha b, with broadcasting."});

const operands::PointwiseForms sub_forms =
    operands::register_pointwise<AddArgs>({.schema = "sub(a, b)",
                                           .infer = operands::infer_broadcast,
                                           .cpu = sub_cpu,
                                           .element = sub_element,
                                           .rule = rules::pointwise_linear,
                                           .backward = sub_backward,
                                           .about = "a - alpha b, with broadcasting."});

Tensor call_promoted(const Op& op, const Tensor& a, const Tensor& b, const Number& alpha) {
  operands::given(op.name, "a", a);
  operands::given(op.name, "b", b);
  const Attributes attributes = AddArgs{alpha};
  if (a.dtype() == b.dtype()) [[likely]] {
    return call_one(op, {a, b}, attributes);
  }
  const DType type = operands::common_type(a, b);
  return call_one(op, {cast(a, type), cast(b, type)}, attributes);
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b, const Number& alpha) {
  return call_promoted(add_forms.op, a, b, alpha);
}

Tensor sub(const Tensor& a, const Tensor& b, const Number& alpha) {
  return call_promoted(sub_forms.op, a, b, alpha);
}

Tensor add_(const Tensor& a, const Tensor& b, const Number& alpha) {
  return call_one(add_forms.in_place, {a, operands::in_place_operand("add_", a, b)},
                  AddArgs{alpha});
}

Tensor sub_(const Tensor& a, const Tensor& b, const Number& alpha) {
  return call_one(sub_forms.in_place, {a, operands::in_place_operand("sub_", a, b)},
                  AddArgs{alpha});
}

}  // namespace tessera::ops
