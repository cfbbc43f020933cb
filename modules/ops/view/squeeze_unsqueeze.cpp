// Dims of extent 1 removed and added: squeeze, unsqueeze.
module;
#include <cstdint>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :view_call;

namespace tessera::ops {
namespace {

using namespace views;

struct SqueezeArgs {
  std::int64_t dim;
};

/// Marks a dim that stays, in squeeze's local call.
constexpr std::int64_t no_dim = max_dims;

int squeezed_dim(const Dims& x, std::int64_t dim) {
  if (dim == no_dim || x.empty()) {
    return -1;
  }
  const int d = wrap_dim(dim, x.size(), "squeeze");
  return x[d] == 1 ? d : -1;
}

Dims squeeze_shape(const Call& call) {
  Dims shape = call.in[0].shape();
  const int d = squeezed_dim(shape, call.args<SqueezeArgs>().dim);
  if (d >= 0) {
    shape.erase(d);
  }
  return shape;
}

int unsqueezed_dim(const Call& call) {
  return wrap_dim(call.args<SqueezeArgs>().dim, call.in[0].dims() + 1, "unsqueeze");
}

Dims unsqueeze_shape(const Call& call) {
  Dims shape = call.in[0].shape();
  shape.insert(unsqueezed_dim(call), 1);
  return shape;
}

void squeeze_rule(const RuleContext& context, Strategies& strategies) {
  const int removed =
      squeezed_dim(context.call.in[0].shape(), context.call.args<SqueezeArgs>().dim);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != removed) {
      strategies.push_back(
          rules::strategy({Shard(d)}, {Shard(removed >= 0 && d > removed ? d - 1 : d)}));
    }
  }
  rules::moves_elements(context, strategies);
}

void unsqueeze_rule(const RuleContext& context, Strategies& strategies) {
  const int added = unsqueezed_dim(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(rules::strategy({Shard(d)}, {Shard(d >= added ? d + 1 : d)}));
  }
  rules::moves_elements(context, strategies);
}

/// A shard may have extent 1 where the whole has more: that dim stays.
Attributes localize_squeeze(const LocalContext& context) {
  const int d = squeezed_dim(context.call.in[0].shape(), context.call.args<SqueezeArgs>().dim);
  return SqueezeArgs{.dim = d >= 0 ? d : no_dim};
}

void squeeze_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const int d = squeezed_dim(context.in_shapes[0], context.args<SqueezeArgs>().dim);
  out[0] = d >= 0 ? unsqueeze(grads[0], d) : grads[0];
}

void unsqueeze_backward(const BackwardContext& context, std::span<const Tensor> grads,
                        std::span<Tensor> out) {
  out[0] =
      squeeze(grads[0], wrap_dim(context.args<SqueezeArgs>().dim, grads[0].dims(), "unsqueeze"));
}

const Op& squeeze_op = register_op<SqueezeArgs>(
    {.schema = "squeeze(x)",
     .infer = infer_shape<squeeze_shape>,
     .view = make_view<squeeze_shape>,
     .rule = squeeze_rule,
     .localize = localize_squeeze,
     .backward = squeeze_backward,
     .about = "x without a dim of extent 1; a dim with another extent is kept."});

const Op& unsqueeze_op =
    register_op<SqueezeArgs>({.schema = "unsqueeze(x)",
                              .infer = infer_shape<unsqueeze_shape>,
                              .view = make_view<unsqueeze_shape>,
                              .rule = unsqueeze_rule,
                              .backward = unsqueeze_backward,
                              .about = "x with a new dim of extent 1 before `dim`."});

}  // namespace

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  operands::given("squeeze", "x", x);
  return call_one(squeeze_op, {x}, SqueezeArgs{.dim = wrap_dim(dim, x.dims(), "squeeze")});
}

Tensor squeeze(const Tensor& x) {
  operands::given("squeeze", "x", x);
  Tensor result = x;
  for (int d = x.dims() - 1; d >= 0; --d) {
    if (x.shape()[d] == 1) {
      result = squeeze(result, d);
    }
  }
  return result;
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  operands::given("unsqueeze", "x", x);
  return call_one(unsqueeze_op, {x}, SqueezeArgs{.dim = wrap_dim(dim, x.dims() + 1, "unsqueeze")});
}

}  // namespace tessera::ops
