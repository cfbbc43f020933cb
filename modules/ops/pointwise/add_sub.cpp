// a + alpha b and a - alpha b.
module;
#include <span>
#include <type_traits>

#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/kernels/apply.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;

struct AddArgs {
  Dynamic<double> alpha;
};

/// Bool operands are not scaled.
template <class F>
void cpu(const Call& call, std::span<Tensor> out) {
  const double alpha = call.args<AddArgs>().alpha;
  const bool subtracts = std::is_same_v<F, functions::SubScaled>;
  if (out[0].dtype() == DType::boolean && (subtracts || alpha != 1)) {
    fail({.thing = "add",
          .wrong = "bool operands cannot be scaled",
          .expected = "alpha 1",
          .advice = "cast them first"});
  }
  apply_function(kernels::kernels_of<F, 2, 1>(), call, {&alpha, 1}, out[0]);
}

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
                                           .cpu = cpu<functions::AddScaled>,
                                           .element = element<functions::AddScaled>,
                                           .rule = rules::pointwise_linear,
                                           .backward = add_backward,
                                           .about = "a + alpha b, with broadcasting."});

const operands::PointwiseForms sub_forms =
    operands::register_pointwise<AddArgs>({.schema = "sub(a, b)",
                                           .infer = operands::infer_broadcast,
                                           .cpu = cpu<functions::SubScaled>,
                                           .element = element<functions::SubScaled>,
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
