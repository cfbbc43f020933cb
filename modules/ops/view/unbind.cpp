// The slices along a dim: unbind.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct UnbindArgs {
  std::int64_t dim;
};

int unbound_dim(const Call& call) {
  return wrap_dim(call.args<UnbindArgs>().dim, call.in[0].dims(), "unbind");
}

void unbind_infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const int dim = unbound_dim(call);
  const std::int64_t count = shape[dim];
  shape.erase(dim);
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back({shape, call.in[0].dtype()});
  }
}

void unbind_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const int dim = unbound_dim(call);
  Dims shape = x.shape();
  Dims strides = x.strides();
  const std::int64_t step = strides[dim];
  shape.erase(dim);
  strides.erase(dim);
  for (std::int64_t i = 0; i < x.shape()[dim]; ++i) {
    out.push_back(alias(x, shape, strides, x.offset() + i * step));
  }
}

void unbind_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = unbound_dim(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      Strategy s;
      s.in.push_back(Shard(d));
      for (std::size_t i = 0; i < context.out.size(); ++i) {
        s.out.push_back(Shard(d > dim ? d - 1 : d));
      }
      strategies.push_back(s);
    }
  }
  rules::moves_elements(context, strategies);
}

void unbind_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  std::vector<Tensor> slices(grads.begin(), grads.end());
  const auto used = std::find_if(slices.begin(), slices.end(),
                                 [](const Tensor& slice) { return slice.defined(); });
  const Tensor zero = zeros_like(*used);
  for (Tensor& slice : slices) {
    slice = slice ? slice : zero;
  }
  out[0] = stack(slices, context.args<UnbindArgs>().dim);
}

const Op& unbind_op =
    register_op<UnbindArgs>({.schema = "unbind(x)",
                             .infer = unbind_infer,
                             .view = unbind_view,
                             .rule = unbind_rule,
                             .backward = unbind_backward,
                             .about = "The slices along a dim, without that dim."});

}  // namespace

Tensors unbind(const Tensor& x, std::int64_t dim) {
  operands::given("unbind", "x", x);
  return call(unbind_op, {x}, UnbindArgs{.dim = wrap_dim(dim, x.dims(), "unbind")});
}

}  // namespace tessera::ops
