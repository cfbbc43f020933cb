// Dims of extent 1 repeated without copies.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct ExpandArgs {
  Dims shape;
};

/// `shape` with its -1 replaced by x's extents.
Dims resolved(const Dims& x, Dims shape) {
  const int front = shape.size() - x.size();
  bool fits = front >= 0;
  for (int d = 0; fits && d < shape.size(); ++d) {
    if (shape[d] == -1 && d >= front) {
      shape[d] = x[d - front];
    }
    fits = shape[d] >= 0 && (d < front || x[d - front] == 1 || x[d - front] == shape[d]);
  }
  if (fits) {
    checked_product(shape, "expand");
  } else {
    fail({.thing = "expand",
          .wrong = "only dims of extent 1 can be repeated",
          .got = fmt::format("a tensor of {}, requested {}", to_string(x), to_string(shape))});
  }
  return shape;
}

Dims result_shape(const Call& call) {
  return resolved(call.in[0].shape(), call.args<ExpandArgs>().shape);
}

void infer(const Call& call, ResultShapes& out) {
  out.push_back({result_shape(call), call.in[0].dtype()});
}

void make_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Dims shape = result_shape(call);
  out.push_back(alias(x, shape, operands::broadcast_strides(x, shape), x.offset()));
}

/// Placement rule: what repeats is whole on every rank; the other dims keep their shards.
void rule(const RuleContext& context, Strategies& strategies) {
  const Dims& from = context.call.in[0].shape();
  const Dims& to = context.out[0].shape;
  const int front = to.size() - from.size();
  for (int d = 0; d < from.size(); ++d) {
    if (from[d] == to[d + front]) {
      strategies.push_back(rules::strategy({Shard(d)}, {Shard(d + front)}));
    }
  }
  rules::moves_elements(context, strategies);
}

Attributes localize(const LocalContext& context) {
  return ExpandArgs{.shape = local_shape(*context.out[0])};
}

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = operands::sum_to(grads[0], context.in_shapes[0]);
}

const Op& expand_op = register_op<ExpandArgs>(
    {.schema = "expand(x)",
     .infer = infer,
     .view = make_view,
     .rule = rule,
     .localize = localize,
     .backward = backward,
     .about = "Repeats dims of extent 1; -1 keeps an extent; new dims are added at the front."});

}  // namespace

Tensor expand(const Tensor& x, const Dims& shape) {
  operands::given("expand", "x", x);
  return call_one(expand_op, {x}, ExpandArgs{.shape = resolved(x.shape(), shape)});
}

}  // namespace tessera::ops
