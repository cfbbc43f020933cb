// The diagonals of two dims: diagonal.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "shared/kernels/types.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct DiagonalArgs {
  std::int64_t offset;
  std::int64_t dim1;
  std::int64_t dim2;
};

struct DiagonalBackwardArgs {
  std::int64_t offset;
  std::int64_t dim1;
  std::int64_t dim2;
  Dims shape;
};

/// The position of a diagonal in a tensor of `shape`.
struct Diagonal {
  int dim1 = 0;
  int dim2 = 1;
  std::int64_t row = 0;  // of its first element
  std::int64_t column = 0;
  std::int64_t length = 0;
};

template <class Args>
Diagonal diagonal_of(const Op& op, const Args& args, const Dims& shape) {
  // Beyond every extent the diagonal is empty, however far.
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::int64_t offset = std::max(args.offset, -most);
  Diagonal d;
  d.dim1 = wrap_dim(args.dim1, shape.size(), op.name.c_str());
  d.dim2 = wrap_dim(args.dim2, shape.size(), op.name.c_str());
  if (d.dim1 == d.dim2) {
    fail({.thing = op.name,
          .wrong = "the two dims must differ",
          .got = fmt::format("{} twice", d.dim1)});
  }
  d.row = std::max<std::int64_t>(-offset, 0);
  d.column = std::max<std::int64_t>(offset, 0);
  const auto left = [](std::int64_t extent, std::int64_t skipped) {
    return extent > skipped ? extent - skipped : 0;
  };
  d.length = std::min(left(shape[d.dim1], d.row), left(shape[d.dim2], d.column));
  return d;
}

/// `values` of the other dims, then `last`.
Dims without_both(const Dims& values, const Diagonal& diagonal, std::int64_t last) {
  Dims kept;
  for (int d = 0; d < values.size(); ++d) {
    if (d != diagonal.dim1 && d != diagonal.dim2) {
      kept.push_back(values[d]);
    }
  }
  kept.push_back(last);
  return kept;
}

Tensor diagonal_view(const Tensor& x, const Diagonal& d) {
  const Dims& strides = x.strides();
  const std::int64_t start =
      d.length == 0 ? 0 : d.row * strides[d.dim1] + d.column * strides[d.dim2];
  return alias(x, without_both(x.shape(), d, d.length),
               without_both(strides, d, strides[d.dim1] + strides[d.dim2]), x.offset() + start);
}

/// The dims that a diagonal does not run through; `gradient`: back to x.
template <bool gradient>
void diagonal_dims(const Dims& x, const Diagonal& diagonal, Strategies& strategies) {
  int kept = 0;
  for (int d = 0; d < x.size(); ++d) {
    if (d != diagonal.dim1 && d != diagonal.dim2) {
      strategies.push_back(gradient ? rules::strategy({Shard(kept)}, {Shard(d)})
                                    : rules::strategy({Shard(d)}, {Shard(kept)}));
      ++kept;
    }
  }
}

extern const Op& diagonal_backward_op;

const Op& diagonal_op = register_op<DiagonalArgs>({
    .schema = "diagonal(x)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          const Dims& shape = call.in[0].shape();
          const Diagonal d = diagonal_of(call.op, call.args<DiagonalArgs>(), shape);
          out.push_back({without_both(shape, d, d.length), call.in[0].dtype()});
        },
    .view =
        [](const Call& call, Tensors& out) {
          const Tensor& x = call.in[0];
          out.push_back(
              diagonal_view(x, diagonal_of(call.op, call.args<DiagonalArgs>(), x.shape())));
        },
    .rule =
        [](const RuleContext& context, Strategies& strategies) {
          const Dims& shape = context.call.in[0].shape();
          diagonal_dims<false>(
              shape, diagonal_of(context.call.op, context.call.args<DiagonalArgs>(), shape),
              strategies);
          rules::moves_elements(context, strategies);
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const auto args = context.args<DiagonalArgs>();
          out[0] = call_one(diagonal_backward_op, {grads[0]},
                            DiagonalBackwardArgs{.offset = args.offset,
                                                 .dim1 = args.dim1,
                                                 .dim2 = args.dim2,
                                                 .shape = context.in_shapes[0]});
        },
    .about = "The diagonal of two dims, as a last dim.",
});

const Op& diagonal_backward_op = register_op<DiagonalBackwardArgs>({
    .schema = "diagonal_backward(dy)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          const auto args = call.args<DiagonalBackwardArgs>();
          const Diagonal d = diagonal_of(call.op, args, args.shape);
          check_shape(call, 0, without_both(args.shape, d, d.length));
          out.push_back({args.shape, call.in[0].dtype()});
        },
    .cpu =
        [](const Call& call, std::span<Tensor> out) {
          operands::copy_elements(zeros({}, out[0].dtype()), out[0]);
          const Diagonal d =
              diagonal_of(call.op, call.args<DiagonalBackwardArgs>(), out[0].shape());
          operands::copy_elements(call.in[0], diagonal_view(out[0], d));
        },
    .rule =
        [](const RuleContext& context, Strategies& strategies) {
          const Dims& shape = context.out[0].shape;
          diagonal_dims<true>(
              shape, diagonal_of(context.call.op, context.call.args<DiagonalBackwardArgs>(), shape),
              strategies);
          rules::moves_elements(context, strategies);
        },
    .localize = [](const LocalContext& context) -> Attributes {
      auto args = context.call.args<DiagonalBackwardArgs>();
      args.shape = local_shape(*context.out[0]);
      return args;
    },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const auto args = context.args<DiagonalBackwardArgs>();
          out[0] = diagonal(grads[0], args.offset, args.dim1, args.dim2);
        },
    .about = "Zeros with dy on the diagonal of two dims.",
});

}  // namespace

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  return call_one(diagonal_op, {x}, DiagonalArgs{.offset = offset, .dim1 = dim1, .dim2 = dim2});
}

}  // namespace tessera::ops
