// detach: the value without its gradient.
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void same_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
  rules::moves_elements(context, strategies);
}

const Op& detach_op = register_op(
    {.schema = "detach(x)",
     .infer = infer,
     .view = [](const Call& call, Tensors& out) { out.push_back(detached(call.in[0])); },
     .rule = same_rule,
     .about = "The same value, detached from the autograd graph."});

}  // namespace

Tensor detach(const Tensor& x) { return call_one(detach_op, {x}); }

}  // namespace tessera::ops
