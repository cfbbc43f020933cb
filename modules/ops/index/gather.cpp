// index_select, gather and scatter_add: values of x chosen along one dim by a tensor of indices.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "index/kernels/indexing.hpp"
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

// index_select

void select_infer(const Call& call, ResultShapes& out) {
  check_dims(call, 1, 1);
  Dims shape = call.in[0].shape();
  shape[dim_of(call, call.in[0])] = call.in[1].shape()[0];
  out.push_back({shape, call.in[0].dtype()});
}

void select_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = contiguous_operand(call.in[0]);
  const Tensor index = contiguous_operand(call.in[1]);
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

const Op& select_op = register_op({
    .schema = "index_select(x, index; dim: int)",
    .infer = select_infer,
    .cpu = select_cpu,
    .rule = select_rule,
    .backward = select_backward,
    .saves_inputs = 0b10,
    .about = "The slices of x along a dim that a list of indices names.",
});

/// These gradients are linear in dy: theirs is what the operator takes at the same indices.
template <Tensor (*take)(const Tensor&, const Tensor&, std::int64_t)>
void take_again(const BackwardContext& context, std::span<const Tensor> grads,
                std::span<Tensor> out) {
  out[0] = take(grads[0], context.in[1], context.read().integer());
}

/// The shape that stands behind `dim` in the attributes.
Dims whole_shape(const Call& call) {
  AttributeReader attributes = call.read();
  attributes.integer();
  return attributes.dims();
}

void select_grad_infer(const Call& call, ResultShapes& out) {
  const Dims shape = whole_shape(call);
  check_dims(call, 1, 1);
  Dims slices = shape;
  slices[wrap_dim(call.read().integer(), shape.size(), "index_select")] = call.in[1].shape()[0];
  check_shape(call, 0, slices);
  out.push_back({shape, call.in[0].dtype()});
}

void select_grad_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor dy = contiguous_operand(call.in[0]);
  const Tensor index = contiguous_operand(call.in[1]);
  const IndexShape shape = shape_around(out[0], dim_of(call, out[0]), index.numel());
  clear(out[0]);
  visit(call, dy, index, [&]<class T, class I>(T, I) {
    check_in_range(call,
                   kernels::index_add(shape, pointer<T>(dy), pointer<I>(index), pointer<T>(out[0])),
                   shape.extent);
  });
}

void select_grad_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call, context.call.in[0]);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(d == dim ? strategy({Shard(d), Shard(0)}, {Partial()})
                                  : strategy({Shard(d), Replicate()}, {Shard(d)}));
  }
  pass_partial(context, strategies, 0b01);
}

const Op& select_backward_op = register_op({
    .schema = "index_select_backward(dy, index; dim: int, shape: dims)",
    .infer = select_grad_infer,
    .cpu = select_grad_cpu,
    .rule = select_grad_rule,
    .localize = localize_shape,
    .backward = take_again<index_select>,
    .saves_inputs = 0b10,
    .about = "The gradient of index_select: slices of dy added up by index.",
});

void select_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  out[0] = call_one(select_backward_op, {grads[0], context.in[1]},
                    Attributes().add(context.read().integer()).add(context.in_shapes[0]));
}

// gather

void gather_infer(const Call& call, ResultShapes& out) {
  const int dim = dim_of(call, call.in[0]);
  check_index(call, call.in[0], call.in[1], dim);
  out.push_back({call.in[1].shape(), call.in[0].dtype()});
}

void gather_cpu(const Call& call, std::span<Tensor> out) {
  const int dim = dim_of(call, call.in[0]);
  const Tensor index = contiguous_operand(call.in[1]);
  const Tensor x = contiguous_operand(cut_to(call.in[0], index, dim));
  const IndexShape shape = shape_around(x, dim, index.shape()[dim]);
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

void gather_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& gather_op = register_op({
    .schema = "gather(x, index; dim: int)",
    .infer = gather_infer,
    .cpu = gather_cpu,
    .rule = gather_rule,
    .backward = gather_backward,
    .saves_inputs = 0b10,
    .about = "x at the indices along a dim, element by element.",
});

/// into += source at the indices along `dim`; source is contiguous and as large as index.
void add_scattered(const Call& call, const Tensor& into, const Tensor& index_operand,
                   const Tensor& source, int dim) {
  const Tensor index = contiguous_operand(index_operand);
  write_reached(into, index, dim, [&](const Tensor& target) {
    const IndexShape shape = shape_around(target, dim, index.shape()[dim]);
    visit(call, target, index, [&]<class T, class I>(T, I) {
      check_in_range(
          call,
          kernels::scatter_add(shape, pointer<T>(source), pointer<I>(index), pointer<T>(target)),
          shape.extent);
    });
  });
}

void gather_grad_infer(const Call& call, ResultShapes& out) {
  const Dims shape = whole_shape(call);
  const Tensor whole = empty(shape, call.in[0].dtype(), meta);
  check_index(call, whole, call.in[1], wrap_dim(call.read().integer(), shape.size(), "gather"));
  check_shape(call, 0, call.in[1].shape());
  out.push_back({shape, call.in[0].dtype()});
}

void gather_grad_cpu(const Call& call, std::span<Tensor> out) {
  clear(out[0]);
  add_scattered(call, out[0], call.in[1], contiguous_operand(call.in[0]), dim_of(call, out[0]));
}

void gather_grad_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call, context.call.in[0]);
  for_each_alike(context.out[0].shape, context.call.in[1].shape(), dim,
                 [&](int d) { rules::same_dim(context, strategies, d); });
  strategies.push_back(strategy({Shard(dim), Shard(dim)}, {Partial()}));
  pass_partial(context, strategies, 0b01);
}

const Op& gather_backward_op = register_op({
    .schema = "gather_backward(dy, index; dim: int, shape: dims)",
    .infer = gather_grad_infer,
    .cpu = gather_grad_cpu,
    .rule = gather_grad_rule,
    .localize = localize_shape,
    .backward = take_again<gather>,
    .saves_inputs = 0b10,
    .about = "The gradient of gather: dy added up by index.",
});

void gather_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  out[0] = call_one(gather_backward_op, {grads[0], context.in[1]},
                    Attributes().add(context.read().integer()).add(context.in_shapes[0]));
}

// scatter_add

void scatter_add_infer(const Call& call, ResultShapes& out) {
  const int dim = dim_of(call, call.in[0]);
  check_index(call, call.in[0], call.in[1], dim);
  check_source(call);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void scatter_add_cpu(const Call& call, std::span<Tensor> out) {
  const int dim = dim_of(call, call.in[0]);
  copy_into(out[0], call.in[0]);
  add_scattered(call, out[0], call.in[1], reached_source(call, dim), dim);
}

void scatter_add_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call, context.call.in[0]);
  const Dims& source = context.call.in[2].shape();
  for_each_alike(context.call.in[0].shape(), context.call.in[1].shape(), dim, [&](int d) {
    if (source[d] == context.call.in[1].shape()[d]) {
      rules::same_dim(context, strategies, d);
    }
  });
  if (source[dim] == context.call.in[1].shape()[dim]) {
    strategies.push_back(strategy({Partial(), Shard(dim), Shard(dim)}, {Partial()}));
  }
  pass_partial(context, strategies, 0b101);
}

void scatter_add_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out);

const Op& scatter_add_op = register_op({
    .schema = "scatter_add(x, index, source; dim: int)",
    .infer = scatter_add_infer,
    .cpu = scatter_add_cpu,
    .rule = scatter_add_rule,
    .backward = scatter_add_backward,
    .saves_inputs = 0b010,
    .about = "x with the elements of source added at the indices along a dim.",
});

void scatter_add_backward(const BackwardContext& context, std::span<const Tensor> grads,
                          std::span<Tensor> out) {
  out[0] = grads[0];
  if (context.needs(2)) {
    if (context.in_shapes[2] != context.in[1].shape()) {
      fail(
          fmt::format("scatter_add: no gradient for a source {} larger than its index {}; narrow "
                      "it first",
                      to_string(context.in_shapes[2]), to_string(context.in[1].shape())));
    }
    out[2] = call_one(gather_op, {grads[0], context.in[1]}, context.attributes);
  }
}

}  // namespace

Tensor index_select(const Tensor& x, const Tensor& index, std::int64_t dim) {
  return call_one(select_op, {x, index}, Attributes().add(dim));
}

Tensor gather(const Tensor& x, const Tensor& index, std::int64_t dim) {
  return call_one(gather_op, {x, index}, Attributes().add(dim));
}

Tensor scatter_add(const Tensor& x, const Tensor& index, const Tensor& source, std::int64_t dim) {
  return call_one(scatter_add_op, {x, index, source}, Attributes().add(dim));
}

}  // namespace tessera::ops
