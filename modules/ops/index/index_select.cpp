// Slices of x along a dim by a list of indices: index_select.
module;
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

void select_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 1, 1);
  Dims shape = call.in[0].shape();
  shape[dim_of(call, call.in[0])] = call.in[1].shape()[0];
  out.push_back({shape, call.in[0].dtype()});
}

void select_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  const Tensor index = contiguous_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  const IndexShape shape = shape_around(x, dim_of(call, x), index.numel());
  visit_moved(call, x, index, [&]<class T, class I>(T, I) {
    check_in_range(
        call, kernels::index_select(shape, pointer<T>(x), pointer<I>(index), pointer<T>(out[0])),
        shape.extent);
  });
}

void select_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call, context.call.in[0]);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(d == dim ? strategy({Replicate(), Shard(0)}, {Shard(d)})
                                  : strategy({Shard(d), Replicate()}, {Shard(d)}));
  }
  pass_partial(context, strategies, 0b01);
}

void select_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

/// Of x, a slice for each index.
std::int64_t selected_elements(const Call& call, std::size_t operand) {
  const Tensor& x = call.in[0];
  const std::int64_t extent = x.shape()[dim_of(call, x)];
  return operand == 0 && extent > 0 ? x.numel() / extent * call.in[1].numel()
                                    : call.in[operand].numel();
}

const Op& select_op = register_op<DimArgs>({
    .schema = "index_select(x, index)",
    .infer = select_infer,
    .cpu = in_workspace<select_cpu>,
    .workspace = workspace_of<select_cpu>,
    .rule = select_rule,
    .used_elements = selected_elements,
    .backward = select_backward,
    .saves_inputs = 0b10,
    .moves_elements = true,
    .about = "The slices of x along a dim at a list of indices.",
});

void select_grad_infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<DimShapeArgs>();
  check_dims(call, 1, 1);
  Dims slices = args.shape;
  slices[wrap_dim(args.dim, slices.size(), call.op.name.c_str())] = call.in[1].shape()[0];
  check_shape(call, 0, slices);
  out.push_back({args.shape, call.in[0].dtype()});
}

void select_grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor dy = contiguous_operand(w, call.in[0]);
  const Tensor index = contiguous_operand(w, call.in[1]);
  const IndexShape shape = shape_around(out[0], dim_of<DimShapeArgs>(call, out[0]), index.numel());
  sum_into(w, out[0], [&](const Tensor& sums) {
    visit(call, dy, index, [&]<class T, class I>(T, I) {
      check_in_range(call,
                     kernels::index_add(shape, pointer<T>(dy), pointer<I>(index),
                                        pointer<kernels::Summed<T>>(sums)),
                     shape.extent);
    });
  });
}

void select_grad_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of<DimShapeArgs>(context.call, context.call.in[0]);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(d == dim ? strategy({Shard(d), Shard(0)}, {Partial()})
                                  : strategy({Shard(d), Replicate()}, {Shard(d)}));
  }
  pass_partial(context, strategies, 0b01);
}

const Op& select_backward_op = register_op<DimShapeArgs>({
    .schema = "index_select_backward(dy, index)",
    .infer = select_grad_infer,
    .cpu = in_workspace<select_grad_cpu>,
    .workspace = workspace_of<select_grad_cpu>,
    .rule = select_grad_rule,
    .localize = localize_shape,
    .backward = take_again<index_select>,
    .saves_inputs = 0b10,
    .about = "The gradient of index_select: sums slices of dy by index.",
});

void select_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  out[0] =
      call_one(select_backward_op, {grads[0], context.in[1]},
               DimShapeArgs{.dim = context.args<DimArgs>().dim, .shape = context.in_shapes[0]});
}

}  // namespace

Tensor index_select(const Tensor& x, const Tensor& index, std::int64_t dim) {
  return call_one(select_op, {x, index}, DimArgs{.dim = dim});
}

}  // namespace tessera::ops
