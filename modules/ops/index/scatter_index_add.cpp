// Values written or added at indices along one dim: scatter, index_add.
module;
#include <cstdint>
#include <span>

#include "index/kernels/indexing.hpp"
#include "pointwise/kernels/pointwise.hpp"
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

struct ScatterValueArgs {
  std::int64_t dim;
  Dynamic<double> value;
};

template <class Args>
void same_infer(const Call& call, ResultShapes& out) {
  check_index(call, call.in[0], call.in[1], dim_of<Args>(call, call.in[0]));
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// into = source at the indices along `dim`; source is contiguous and as large as index.
void write_scattered(Workspace& w, const Call& call, const Tensor& into, const Tensor& source,
                     int dim) {
  const Tensor index = contiguous_operand(w, call.in[1]);
  write_reached(w, into, index, dim, [&](const Tensor& target) {
    if (w.counts()) {
      return;
    }
    const IndexShape shape = shape_around(target, dim, index.shape()[dim]);
    visit_moved(call, target, index, [&]<class T, class I>(T, I) {
      check_in_range(
          call, kernels::scatter(shape, pointer<T>(source), pointer<I>(index), pointer<T>(target)),
          shape.extent);
    });
  });
}

// scatter

void scatter_infer(const Call& call, ResultShapes& out) {
  same_infer<DimArgs>(call, out);
  check_source(call);
}

void scatter_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const int dim = dim_of(call, call.in[0]);
  if (!w.counts()) {
    copy_into(out[0], call.in[0]);
  }
  write_scattered(w, call, out[0], reached_source(w, call, dim), dim);
}

/// Every dim but `dim` along which all operands are alike; elements move, so terms may.
void scatter_rule(const RuleContext& context, Strategies& strategies) {
  const Dims& index = context.call.in[1].shape();
  for_each_alike(context.call.in[0].shape(), index, dim_of(context.call, context.call.in[0]),
                 [&](int d) {
                   if (context.call.in[2].shape()[d] == index[d]) {
                     rules::same_dim(context, strategies, d);
                   }
                 });
  for (int op = 0; op < reduce_op_count; ++op) {
    const Placement p = Partial(static_cast<ReduceOp>(op));
    strategies.push_back(strategy({p, Replicate(), p}, {p}));
  }
}

void scatter_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out);

const Op& scatter_op = register_op<DimArgs>({
    .schema = "scatter(x, index, source)",
    .infer = scatter_infer,
    .cpu = in_workspace<scatter_cpu>,
    .workspace = workspace_of<scatter_cpu>,
    .rule = scatter_rule,
    .backward = scatter_backward,
    .saves_inputs = 0b010,
    .about = "x with the elements of source written at the indices along a dim.",
});

/// g with zeros at the indices, and what stood there.
struct OverwrittenValues {
  Tensor rest;
  Tensor taken;
};
OverwrittenValues overwritten(const Tensor& g, const Tensor& index, std::int64_t dim) {
  Tensor taken = gather(g, index, dim);
  return {scatter(g, index, zeros_like(taken), dim), taken};
}

void scatter_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const OverwrittenValues parts = overwritten(grads[0], context.in[1], context.args<DimArgs>().dim);
  if (context.needs(0)) {
    out[0] = parts.rest;
  }
  if (context.needs(2)) {
    const Dims& source = context.in_shapes[2];
    if (source == context.in[1].shape()) {
      out[2] = parts.taken;
    } else {
      Dims padding;  // elements of source that index does not reach
      for (int d = source.size() - 1; d >= 0; --d) {
        padding.push_back(0);
        padding.push_back(source[d] - context.in[1].shape()[d]);
      }
      out[2] = pad(parts.taken, padding);
    }
  }
}

// scatter_value

void value_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  if (!w.counts()) {
    copy_into(out[0], call.in[0]);
  }
  const Tensor source = temporary(w, call.in[1].shape(), out[0].dtype());
  if (!w.counts()) {
    kernels::fill(source.dtype(), source.numel(), call.args<ScatterValueArgs>().value,
                  pointer<void>(source));
  }
  write_scattered(w, call, out[0], source, dim_of<ScatterValueArgs>(call, call.in[0]));
}

void value_rule(const RuleContext& context, Strategies& strategies) {
  for_each_alike(context.call.in[0].shape(), context.call.in[1].shape(),
                 dim_of<ScatterValueArgs>(context.call, context.call.in[0]),
                 [&](int d) { rules::same_dim(context, strategies, d); });
}

const Op& value_op = register_op<ScatterValueArgs>({
    .schema = "scatter_value(x, index)",
    .infer = same_infer<ScatterValueArgs>,
    .cpu = in_workspace<value_cpu>,
    .workspace = workspace_of<value_cpu>,
    .rule = value_rule,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const std::int64_t dim = context.args<ScatterValueArgs>().dim;
          out[0] = overwritten(grads[0], context.in[1], dim).rest;
        },
    .saves_inputs = 0b10,
    .about = "x with one value written at the indices along a dim.",
});

// index_add

void add_infer(const Call& call, ResultShapes& out) {
  const int dim = dim_of(call, call.in[0]);
  check_dims(call, 1, 1);
  Dims source = call.in[0].shape();
  source[dim] = call.in[1].shape()[0];
  check_shape(call, 2, source);
  check_type(call, 2, call.in[0].dtype());
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void add_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor index = contiguous_operand(w, call.in[1]);
  const Tensor source = contiguous_operand(w, call.in[2]);
  const IndexShape shape = shape_around(out[0], dim_of(call, out[0]), index.numel());
  if (!w.counts()) {
    copy_into(out[0], call.in[0]);
  }
  add_into(w, out[0], [&](const Tensor& sums) {
    visit(call, out[0], index, [&]<class T, class I>(T, I) {
      check_in_range(call,
                     kernels::index_add(shape, pointer<T>(source), pointer<I>(index),
                                        pointer<kernels::Summed<T>>(sums)),
                     shape.extent);
    });
  });
}

void add_rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call, context.call.in[0]);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    strategies.push_back(d == dim ? strategy({Partial(), Shard(0), Shard(d)}, {Partial()})
                                  : strategy({Shard(d), Replicate(), Shard(d)}, {Shard(d)}));
  }
  pass_partial(context, strategies, 0b101);
}

const Op& add_op = register_op<DimArgs>({
    .schema = "index_add(x, index, source)",
    .infer = add_infer,
    .cpu = in_workspace<add_cpu>,
    .workspace = workspace_of<add_cpu>,
    .rule = add_rule,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          out[0] = grads[0];
          if (context.needs(2)) {
            out[2] = index_select(grads[0], context.in[1], context.args<DimArgs>().dim);
          }
        },
    .saves_inputs = 0b010,
    .about = "x with the slices of source added at a list of indices along a dim.",
});

}  // namespace

Tensor scatter(const Tensor& x, const Tensor& index, const Tensor& source, std::int64_t dim) {
  return call_one(scatter_op, {x, index, source}, DimArgs{.dim = dim});
}

Tensor scatter(const Tensor& x, const Tensor& index, double value, std::int64_t dim) {
  return call_one(value_op, {x, index}, ScatterValueArgs{.dim = dim, .value = value});
}

Tensor index_add(const Tensor& x, const Tensor& index, const Tensor& source, std::int64_t dim,
                 double alpha) {
  operands::given("index_add", "source", source);
  return call_one(add_op, {x, index, alpha == 1 ? source : mul_scalar(source, alpha)},
                  DimArgs{.dim = dim});
}

}  // namespace tessera::ops
