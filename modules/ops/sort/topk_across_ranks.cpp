// The k largest or smallest along a dim that may be sharded, where the caller asks for it: each
// rank finds its k candidates, and all ranks join them.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;
import :sort_call;

namespace tessera::ops {
namespace {

using namespace sorting;

struct AcrossArgs {
  std::int64_t k;
  std::int64_t dim;
  bool largest;
  SpecArgument whole{};  // of a local call: the Spec of the x that its x is part of
};

int dim_of(const Call& call) {
  return wrap_dim(call.args<AcrossArgs>().dim, call.in[0].dims(), call.op.name.c_str());
}

/// Values and positions; and for each element of x its number among them (from 1; 0: none), from
/// which the gradient follows without communication.
void infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<AcrossArgs>();
  const Tensor& x = call.in[0];
  const int dim = dim_of(call);
  const std::int64_t extent = args.whole ? args.whole->shape[dim] : x.shape()[dim];
  if (args.k < 0 || args.k > extent) {
    refuse(call, {.wrong = "k is out of range",
                  .expected = fmt::format("0 to {}", extent),
                  .got = fmt::format("{}", args.k)});
  }
  Dims shape = x.shape();
  shape[dim] = args.k;
  out.push_back({shape, x.dtype()});
  out.push_back({shape, DType::i64});
  out.push_back({x.shape(), DType::i64});
}

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const auto args = call.args<AcrossArgs>();
  const int dim = dim_of(call);
  sort_lines(w, call.in[0], {dim}, args.largest, out.first(2));
  if (w.counts()) {
    return;
  }
  clear(out[2]);
  std::int64_t inner = 1;
  for (int d = dim + 1; d < out[2].dims(); ++d) {
    inner *= out[2].shape()[d];
  }
  const std::int64_t extent = out[2].shape()[dim];
  const auto* positions = pointer<std::int64_t>(out[1]);
  for (std::int64_t at = 0; at < out[1].numel(); ++at) {
    const std::int64_t line = at / inner / args.k * extent + positions[at];
    pointer<std::int64_t>(out[2])[line * inner + at % inner] = at / inner % args.k + 1;
  }
}

void rule(const RuleContext& context, Strategies& strategies) {
  const int dim = dim_of(context.call);
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (d != dim) {
      rules::same_dim(context, strategies, d);
    }
  }
  const auto slots = static_cast<int>(context.shards_of(0, dim));
  strategies.push_back(rules::strategy({Shard(dim)}, {Replicate(), Replicate(), Shard(dim)}));
  strategies.back().reductions = {InnerReduction{.like = 0, .times = slots},
                                  InnerReduction{.like = 1, .times = slots}};
}

/// Which shard of `dim` begins at `offset`, in the order of the dim.
std::int64_t shard_at(const Spec& whole, int dim, std::int64_t offset) {
  std::int64_t shard = 0;
  std::int64_t extent = whole.shape[dim];
  for (const int axis : whole.layout.axes_sharding(dim)) {
    const std::int64_t count = whole.layout.mesh().axis_size(axis);
    const std::int64_t chunk = std::max<std::int64_t>(1, (extent + count - 1) / count);
    const std::int64_t index = std::min(offset / chunk, count - 1);
    shard = shard * count + index;
    offset -= index * chunk;
    extent = std::min(chunk, std::max<std::int64_t>(0, extent - index * chunk));
  }
  return shard;
}

/// 1, 2, ... along `dim`, for each line of `shape`.
Tensor numbered(const Dims& shape, int dim, Device device) {
  return cumsum(full(shape, 1, DType::i64, device), dim);
}

/// Where the numbers 1 to k of the found ones are in this rank's part of x.
Tensor numbers_here(const Tensor& positions, const Dims& local, int dim, std::int64_t first) {
  Dims wider = local;
  const std::int64_t extent = wider[dim]++;  // one more place, for what is elsewhere
  const Tensor at = add_scalar(positions, -static_cast<double>(first));
  const Tensor elsewhere = logical_or(lt(at, 0), ge(at, static_cast<double>(extent)));
  const Tensor target = masked_fill(at, elsewhere, static_cast<double>(extent));
  const Tensor all = scatter(full(wider, 0, DType::i64, positions.device()), target,
                             numbered(positions.shape(), dim, positions.device()), dim);
  return contiguous(narrow(all, dim, 0, extent));
}

void composed(const Call& call, const InnerReduce& reduce, Tensors& out) {
  const auto args = call.args<AcrossArgs>();
  const Spec& whole = *args.whole;
  const int dim = dim_of(call);
  const DType type = call.in[0].dtype();
  const Tensor x = type == DType::boolean ? cast(call.in[0], DType::u8) : call.in[0];
  const std::int64_t first = local_offset(whole)[dim];
  const std::int64_t here = std::min(args.k, x.shape()[dim]);

  Dims slots = x.shape();
  slots[dim] = args.k * whole.layout.shard_count(dim);
  const Tensor values = full(slots, 0, x.dtype(), x.device());
  const Tensor positions = full(slots, 0, DType::i64, x.device());
  if (here > 0) {
    const ValuesAndIndices mine = topk(x, here, dim, args.largest);
    const std::int64_t slot = shard_at(whole, dim, first) * args.k;
    copy_(narrow(values, dim, slot, here), mine.values);
    copy_(narrow(positions, dim, slot, here),
          add_scalar(mine.indices, static_cast<double>(first + 1)));
  }
  const Tensor all_values = reduce(values, ReduceOp::sum);  // each slot is 0 on all ranks but one
  const Tensor all_positions = reduce(positions, ReduceOp::sum);

  // Slots that no rank has filled come after all others, also after equal ones.
  const Tensor unfilled = eq(all_positions, 0);
  const Tensor order = argsort(cast(unfilled, DType::u8), dim);
  const double infinity = std::numeric_limits<double>::infinity();
  const double last =
      is_floating(type) && !args.largest ? std::numeric_limits<double>::quiet_NaN() : infinity;
  const Tensor filled = masked_fill(all_values, unfilled, args.largest ? -infinity : last);
  const ValuesAndIndices found = topk(gather(filled, order, dim), args.k, dim, args.largest);
  const Tensor indices =
      add_scalar(gather(gather(all_positions, order, dim), found.indices, dim), -1);
  out.push_back(cast(found.values, type));
  out.push_back(indices);
  out.push_back(numbers_here(indices, x.shape(), dim, first));
}

/// Each element of x takes the gradient of its number.
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const int dim = wrap_dim(context.args<AcrossArgs>().dim, context.in_shapes[0].size(), "topk");
  const Tensor g = operands::whole_sum(grads[0]);
  Dims zero_in_front = Dims::filled(2 * (g.dims() - dim), 0);
  zero_in_front[zero_in_front.size() - 2] = 1;
  out[0] = gather(pad(g, zero_in_front), context.out[2], dim);
}

const Op& across_op = register_op<AcrossArgs>({
    .schema = "topk_across_ranks(x)",
    .infer = infer,
    .cpu = in_workspace<cpu>,
    .workspace = workspace_of<cpu>,
    .rule = rule,
    .localize =
        [](const LocalContext& context) { return with_whole<AcrossArgs>(context, context.in[0]); },
    .composed = composed,
    .backward = backward,
    .saves_outputs = 0b100,
    .about = "topk along a dim that may be sharded, and the number of each element of x among the "
             "found ones (0: none).",
});

}  // namespace

ValuesAndIndices sorting::topk_across_ranks(const Tensor& x, std::int64_t k, int dim,
                                            bool largest) {
  Tensors found = call(across_op, {x}, AcrossArgs{.k = k, .dim = dim, .largest = largest});
  return {std::move(found[0]), std::move(found[1])};
}

}  // namespace tessera::ops
