// The operators index and index_put: x[indices...] read and written, with as many tensors of
// indices as are given for the first dims of x. The functions of these names are in index.cpp.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

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

struct ShapeArgs {
  Dims shape;
};

struct PutArgs {
  bool accumulate;
};

/// The shape to which the indices broadcast. Errors: other types, more indices than dims of x.
Dims places(const Call& call, const Dims& x, std::span<const Tensor> indices) {
  if (indices.empty() || indices.size() > static_cast<std::size_t>(x.size())) {
    refuse(call, {.wrong = "the number of indices is wrong",
                  .expected = fmt::format("1 to {} for {}", x.size(), to_string(x)),
                  .got = fmt::format("{}", indices.size())});
  }
  Dims shape;
  for (const Tensor& each : indices) {
    if (each.dtype() != DType::i64 && each.dtype() != DType::i32) {
      refuse_index_type(call, each);
    }
    shape = operands::broadcast_shape(call.op.name, shape, each.shape());
  }
  return shape;
}

/// x without its indexed dims.
Dims slice_shape(const Dims& x, std::size_t indexed) { return Dims(x.span().subspan(indexed)); }

Dims joined(const Dims& a, const Dims& b) {
  Dims shape = a;
  for (const std::int64_t extent : b) {
    shape.push_back(extent);
  }
  return shape;
}

/// For each place, which slice of x (its indexed dims seen as one) it is.
std::span<const std::int64_t> slices_of(Workspace& w, const Call& call, const Dims& x,
                                        std::span<const Tensor> indices) {
  const Dims shape = places(call, x, indices);
  const std::span slices(w.take<std::int64_t>(shape.product()),
                         static_cast<std::size_t>(shape.product()));
  if (!w.counts()) {
    std::fill(slices.begin(), slices.end(), 0);
  }
  for (std::size_t i = 0; i < indices.size() && !slices.empty(); ++i) {
    const std::int64_t extent = x[static_cast<int>(i)];
    const Workspace::Scope of_index(w);
    const Tensor whole = contiguous_operand(w, expanded_operand(indices[i], shape));
    if (w.counts()) {
      continue;
    }
    visit_index(call, whole, [&]<class I>(I) {
      for (std::size_t k = 0; k < slices.size(); ++k) {
        const auto given = static_cast<std::int64_t>(pointer<I>(whole)[k]);
        const std::int64_t at = given < 0 ? given + extent : given;
        if (at < 0 || at >= extent) {
          refuse(call, {.wrong = fmt::format("index {} is out of range for dim {} of {}", given, i,
                                             to_string(x))});
        }
        slices[k] = slices[k] * extent + at;
      }
    });
  }
  return slices;
}

std::size_t bytes_of(const Tensor& x, const Dims& shape) {
  return static_cast<std::size_t>(shape.product()) * size_of(x.dtype());
}

/// Placement rules of this file, for a big tensor (x, or its gradient), whose slices follow
/// the dims of the places in a small one: `add(big, small, index)` with index the placement of each
/// index.
template <class Add>
void slice_dims(const Dims& x, std::size_t indexed, const Dims& places, Add add) {
  for (int d = static_cast<int>(indexed); d < x.size(); ++d) {
    add(d, d - static_cast<int>(indexed) + places.size());
  }
}

/// Dim `d` of the places, as the index has it; Replicate where the index repeats along it.
Placement place_shard(const Tensor& index, const Dims& places, int d) {
  const int own = d - (places.size() - index.dims());
  return own >= 0 && index.shape()[own] == places[d] ? Shard(own) : Replicate();
}

// index

void index_infer(const Call& call, ResultShapes& out) {
  const Dims& x = call.in[0].shape();
  const auto indices = call.in.subspan(1);
  out.push_back(
      {joined(places(call, x, indices), slice_shape(x, indices.size())), call.in[0].dtype()});
}

void index_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  const auto indices = call.in.subspan(1);
  const std::span slices = slices_of(w, call, x.shape(), indices);
  if (w.counts()) {
    return;
  }
  const std::size_t bytes = bytes_of(x, slice_shape(x.shape(), indices.size()));
  const auto* const from = pointer<const std::byte>(x);
  auto* to = pointer<std::byte>(out[0]);
  for (const std::int64_t slice : slices) {
    if (bytes != 0) {
      std::memcpy(to, from + static_cast<std::size_t>(slice) * bytes, bytes);
    }
    to += bytes;
  }
}

/// A strategy of an operand and what indexes it, which `of_index` places.
template <class OfIndex>
void add_indexed(Strategies& strategies, Placement first, std::span<const Tensor> indices,
                 OfIndex of_index, Placement result) {
  Strategy s;
  s.in.push_back(first);
  for (const Tensor& index : indices) {
    s.in.push_back(of_index(index));
  }
  s.out.push_back(result);
  strategies.push_back(s);
}

void index_rule(const RuleContext& context, Strategies& strategies) {
  const Dims& x = context.call.in[0].shape();
  const auto indices = context.call.in.subspan(1);
  const Dims shape = places(context.call, x, indices);
  const auto add = [&](Placement first, auto of_index, Placement result) {
    add_indexed(strategies, first, indices, of_index, result);
  };
  const auto whole = [](const Tensor&) { return Replicate(); };
  slice_dims(x, indices.size(), shape,
             [&](int d, int there) { add(Shard(d), whole, Shard(there)); });
  for (int d = 0; d < shape.size(); ++d) {
    add(Replicate(), [&](const Tensor& index) { return place_shard(index, shape, d); }, Shard(d));
  }
  for (int op = 0; op < reduce_op_count; ++op) {
    const Placement p = Partial(static_cast<ReduceOp>(op));
    add(p, whole, p);
  }
}

void index_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out);

const Op& index_op = register_op({
    .schema = "index(x, indices...)",
    .infer = index_infer,
    .cpu = in_workspace<index_cpu>,
    .workspace = workspace_of<index_cpu>,
    .rule = index_rule,
    .backward = index_backward,
    .saves_inputs = saves_all - 1,
    .about = "x[indices...]: one tensor of indices for each of the first dims of x.",
});

/// sums += values at the slices; both contiguous.
void add_slices(const Call& call, const Tensor& sums, std::span<const std::int64_t> slices,
                std::int64_t width, const Tensor& values) {
  const kernels::IndexShape shape{.extent = width == 0 ? 0 : sums.numel() / width,
                                  .indices = static_cast<std::int64_t>(slices.size()),
                                  .inner = width};
  const Tensor index = empty({0}, DType::i64);  // says of which type the indices are
  visit(call, values, index, [&]<class T, class I>(T, I) {
    check_in_range(call,
                   width == 0 || kernels::index_add(shape, pointer<T>(values), slices.data(),
                                                    pointer<kernels::Summed<T>>(sums)),
                   shape.extent);
  });
}

void grad_infer(const Call& call, ResultShapes& out) {
  const Dims shape = call.args<ShapeArgs>().shape;
  const auto indices = call.in.subspan(1);
  check_shape(call, 0, joined(places(call, shape, indices), slice_shape(shape, indices.size())));
  out.push_back({shape, call.in[0].dtype()});
}

void grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto indices = call.in.subspan(1);
  const Dims& shape = out[0].shape();
  const std::span slices = slices_of(w, call, shape, indices);
  const Tensor dy = contiguous_operand(w, call.in[0]);
  sum_into(w, out[0], [&](const Tensor& sums) {
    add_slices(call, sums, slices, slice_shape(shape, indices.size()).product(), dy);
  });
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  const Dims& x = context.out[0].shape;
  const auto indices = context.call.in.subspan(1);
  const Dims shape = places(context.call, x, indices);
  const auto add = [&](Placement first, auto of_index, Placement result) {
    add_indexed(strategies, first, indices, of_index, result);
  };
  const auto whole = [](const Tensor&) { return Replicate(); };
  slice_dims(x, indices.size(), shape,
             [&](int d, int there) { add(Shard(there), whole, Shard(d)); });
  for (int d = 0; d < shape.size(); ++d) {
    add(Shard(d), [&](const Tensor& index) { return place_shard(index, shape, d); }, Partial());
  }
  pass_partial(context, strategies, 0b1);
}

const Op& index_backward_op = register_op<ShapeArgs>({
    .schema = "index_backward(dy, indices...)",
    .infer = grad_infer,
    .cpu = in_workspace<grad_cpu>,
    .workspace = workspace_of<grad_cpu>,
    .rule = grad_rule,
    .localize = [](const LocalContext& context) -> Attributes {
      return ShapeArgs{.shape = local_shape(*context.out[0])};
    },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          out[0] = index_first_dims(grads[0], context.in.subspan(1));
        },
    .saves_inputs = saves_all - 1,
    .about = "The gradient of index: sums dy at x[indices...].",
});

/// The operands of a call whose indices follow `first`.
std::vector<Tensor> with_indices(std::initializer_list<Tensor> first,
                                 std::span<const Tensor> indices) {
  std::vector<Tensor> in(first);
  in.insert(in.end(), indices.begin(), indices.end());
  return in;
}

void index_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  out[0] = call(index_backward_op, with_indices({grads[0]}, context.in.subspan(1)),
                ShapeArgs{.shape = context.in_shapes[0]})[0];
}

// index_put

void put_infer(const Call& call, ResultShapes& out) {
  const Dims& x = call.in[0].shape();
  const auto indices = call.in.subspan(2);
  check_type(call, 1, call.in[0].dtype());
  operands::check_broadcasts_to(call.op.name, call.in[1].shape(),
                                joined(places(call, x, indices), slice_shape(x, indices.size())));
  out.push_back({x, call.in[0].dtype()});
}

void put_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Dims& x = call.in[0].shape();
  const auto indices = call.in.subspan(2);
  const Dims slice = slice_shape(x, indices.size());
  const std::span slices = slices_of(w, call, x, indices);
  const Tensor values =
      contiguous_operand(w, expanded_operand(call.in[1], joined(places(call, x, indices), slice)));
  if (!w.counts()) {
    copy_into(out[0], call.in[0]);
  }
  if (call.args<PutArgs>().accumulate) {
    add_into(w, out[0],
             [&](const Tensor& sums) { add_slices(call, sums, slices, slice.product(), values); });
    return;
  }
  if (w.counts()) {
    return;
  }
  const std::size_t bytes = bytes_of(values, slice);
  auto* const to = pointer<std::byte>(out[0]);
  const auto* from = pointer<const std::byte>(values);
  for (const std::int64_t place : slices) {
    if (bytes != 0) {
      std::memcpy(to + static_cast<std::size_t>(place) * bytes, from, bytes);
    }
    from += bytes;
  }
}

void put_rule(const RuleContext& context, Strategies& strategies) {
  const Dims& x = context.call.in[0].shape();
  const Tensor& values = context.call.in[1];
  const auto indices = context.call.in.subspan(2);
  const Dims shape = places(context.call, x, indices);
  const Dims all = joined(shape, slice_shape(x, indices.size()));
  const bool accumulate = context.call.args<PutArgs>().accumulate;
  const auto add = [&](Placement of_x, Placement of_values, auto of_index, Placement result) {
    Strategy s;
    s.in = {of_x, of_values};
    for (const Tensor& index : indices) {
      s.in.push_back(of_index(index));
    }
    s.out.push_back(result);
    strategies.push_back(s);
  };
  const auto whole = [](const Tensor&) { return Replicate(); };
  slice_dims(x, indices.size(), shape, [&](int d, int there) {
    add(Shard(d), place_shard(values, all, there), whole, Shard(d));
  });
  for (int d = 0; accumulate && d < shape.size(); ++d) {
    // Values that repeat along the places would be added by each rank as well as once: they repeat
    // for its own places only, which is right.
    add(
        Partial(), place_shard(values, all, d),
        [&](const Tensor& index) { return place_shard(index, shape, d); }, Partial());
  }
  for (int op = 0; op < reduce_op_count; ++op) {
    const Placement p = Partial(static_cast<ReduceOp>(op));
    const bool linear = p == Partial() || p == Partial(ReduceOp::avg);
    if (linear || !accumulate) {
      add(p, p, whole, p);
    }
  }
}

void put_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out);

const Op& put_op = register_op<PutArgs>({
    .schema = "index_put(x, values, indices...)",
    .infer = put_infer,
    .cpu = in_workspace<put_cpu>,
    .workspace = workspace_of<put_cpu>,
    .rule = put_rule,
    .backward = put_backward,
    .saves_inputs = saves_all - 0b11,
    .about = "x with values written, or added, at x[indices...].",
});

void put_backward(const BackwardContext& context, std::span<const Tensor> grads,
                  std::span<Tensor> out) {
  const auto indices = context.in.subspan(2);
  const bool accumulate = context.args<PutArgs>().accumulate;
  Tensor taken;
  if (context.needs(1) || !accumulate) {
    taken = index_first_dims(grads[0], indices);
  }
  if (context.needs(0)) {
    out[0] =
        accumulate ? grads[0] : index_put_first_dims(grads[0], indices, zeros_like(taken), false);
  }
  if (context.needs(1)) {
    out[1] = operands::sum_to(taken, context.in_shapes[1]);
  }
}

}  // namespace

Tensor indexing::index_first_dims(const Tensor& x, std::span<const Tensor> indices) {
  return call(index_op, with_indices({x}, indices))[0];
}

Tensor indexing::index_put_first_dims(const Tensor& x, std::span<const Tensor> indices,
                                      const Tensor& values, bool accumulate) {
  return call(put_op, with_indices({x, values}, indices), PutArgs{.accumulate = accumulate})[0];
}

}  // namespace tessera::ops
