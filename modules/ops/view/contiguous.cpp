// x in contiguous memory: contiguous.
module;
#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

void contiguous_infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void contiguous_view(const Call& call, Tensors& out) {
  const Tensor x = operands::contiguous(call.in[0]);
  out.push_back(alias(x, x.shape(), contiguous_strides(x.shape()), x.offset()));
}

void contiguous_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
  rules::moves_elements(context, strategies);
}

void contiguous_backward(const BackwardContext&, std::span<const Tensor> grads,
                         std::span<Tensor> out) {
  out[0] = grads[0];
}

const Op& contiguous_op = register_op({.schema = "contiguous(x)",
                                       .infer = contiguous_infer,
                                       .view = contiguous_view,
                                       .rule = contiguous_rule,
                                       .backward = contiguous_backward,
                                       .aliasing = Aliasing::sometimes,
                                       .moves_elements = true,
                                       .about = "x in contiguous memory, copied where it is not."});

}  // namespace

Tensor contiguous(const Tensor& x) {
  operands::given("contiguous", "x", x);
  return x.is_contiguous() ? x : call_one(contiguous_op, {x});
}

}  // namespace tessera::ops
