// Elements of x at indices along a dim: gather, take_along_dim.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "index/kernels/indexing.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :index_call;

namespace tessera::ops {
namespace {

using namespace indexing;
using kernels::IndexShape;
using rules::strategy;

void gather_infer(const Call& call, ResultShapes& out) {
  const int dim = dim_of(call, call.in[0]);
  check_index(call, call.in[0], call.in[1], dim);
  out.push_back({call.in[1].shape(), call.in[0].dtype()});
}

void gather_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const int dim = dim_of(call, call.in[0]);
  const Tensor index = contiguous_operand(w, call.in[1]);
  const Tensor x = contiguous_operand(w, cut_to(call.in[0], index, dim));
  const IndexShape shape = shape_around(x, dim, index.shape()[dim]);
  if (w.counts()) {
    return;
  }
  visit_moved(call, x, index, [&]<class T, class I>(T, I) {
    check_in_range(call,
                   kernels::gather(shape, pointer<T>(x), pointer<I>(index), pointer<T>(out[0])),
                   shape.extent);
  });
}

void gather_rule(const RuleContext& context, Strategies& strategies) {
  const Tensor& x = context.call.in[0];
  const int dim = dim_of(context.call, x);
  for_each_alike(x.shape(), context.call.in[1].shape(), dim,
                 [&](int d) { rules::same_dim(context, strategies, d); });
  strategies.push_back(strategy({Replicate(), Shard(dim)}, {Shard(dim)}));
  pass_partial(context, strategies, 0b01);
}

void gather_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

/// Of x, an element for each index.
std::int64_t gathered_elements(const Call& call, std::size_t) { return call.in[1].numel(); }

const Op& gather_op = register_op<DimArgs>({
    .schema = "gather(x, index)",
    .infer = gather_infer,
    .cpu = in_workspace<gather_cpu>,
    .workspace = workspace_of<gather_cpu>,
    .rule = gather_rule,
    .used_elements = gathered_elements,
    .backward = gather_gradient,
    .saves_inputs = 0b10,
    .moves_elements = true,
    .about = "x at the indices along a dim, element by element.",
});

void gather_grad_infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<DimShapeArgs>();
  const Tensor whole = empty(args.shape, call.in[0].dtype(), meta, call.op.name);
  check_index(call, whole, call.in[1], wrap_dim(args.dim, args.shape.size(), call.op.name.c_str()));
  check_shape(call, 0, call.in[1].shape());
  out.push_back({args.shape, call.in[0].dtype()});
}

void gather_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  if (!w.counts()) {
    clear(out[0]);
  }
  add_scattered(w, call, out[0], call.in[1], contiguous_operand(w, call.in[0]),
                dim_of<DimShapeArgs>(call, out[0]));
}

void gather_grad_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of<DimShapeArgs>(context.call, context.call.in[0]);
  for_each_alike(context.out[0].shape, context.call.in[1].shape(), dim,
                 [&](int d) { rules::same_dim(context, strategies, d); });
  strategies.push_back(strategy({Shard(dim), Shard(dim)}, {Partial()}));
  pass_partial(context, strategies, 0b01);
}

const Op& gather_backward_op = register_op<DimShapeArgs>({
    .schema = "gather_backward(dy, index)",
    .infer = gather_grad_infer,
    .cpu = in_workspace<gather_grad_cpu>,
    .workspace = workspace_of<gather_grad_cpu>,
    .rule = gather_grad_rule,
    .localize = localize_shape,
    .backward = take_again<gather>,
    .saves_inputs = 0b10,
    .about = "The gradient of gather: sums dy by index.",
});

void gather_gradient(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  out[0] = indexing::gather_backward(grads[0], context.in[1], context.args<DimArgs>().dim,
                                     context.in_shapes[0]);
}

}  // namespace

Tensor indexing::gather_backward(const Tensor& dy, const Tensor& index, std::int64_t dim,
                                 const Dims& shape) {
  return call_one(gather_backward_op, {dy, index}, DimShapeArgs{.dim = dim, .shape = shape});
}

Tensor gather(const Tensor& x, const Tensor& index, std::int64_t dim) {
  return call_one(gather_op, {x, index}, DimArgs{.dim = dim});
}

Tensor take_along_dim(const Tensor& x, const Tensor& index, std::int64_t dim) {
  operands::given("take_along_dim", "x", x);
  operands::given("take_along_dim", "index", index);
  const int d = wrap_dim(dim, x.dims(), "take_along_dim");
  if (index.dims() != x.dims()) {
    fail({.thing = "take_along_dim",
          .wrong = "index must have as many dims as x",
          .got = fmt::format("{} for {}", to_string(index.shape()), to_string(x.shape()))});
  }
  Dims here = x.shape();
  Dims there = index.shape();
  here[d] = there[d] = 1;
  here = there = operands::broadcast_shape("take_along_dim", here, there);
  here[d] = x.shape()[d];
  there[d] = index.shape()[d];
  return gather(here == x.shape() ? x : expand(x, here),
                there == index.shape() ? index : expand(index, there), d);
}

}  // namespace tessera::ops
