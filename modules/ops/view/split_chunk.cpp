// Views of the pieces along a dim: split, chunk.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :view_call;

namespace tessera::ops {
namespace {

struct SplitArgs {
  std::int64_t size;
  std::int64_t dim;
};

struct Pieces {
  int dim;
  std::int64_t size;
  std::int64_t count;
};

Pieces pieces_of(const SplitArgs& args, const Dims& x) {
  const std::int64_t size = args.size;
  const int dim = wrap_dim(args.dim, x.size(), "split");
  if (size < 1) {
    fail(fmt::format("split: the size of a piece must be at least 1 (got {})", size));
  }
  return {dim, size, std::max<std::int64_t>(1, x[dim] / size + (x[dim] % size != 0 ? 1 : 0))};
}

void split_infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const Pieces p = pieces_of(call.args<SplitArgs>(), shape);
  const std::int64_t extent = shape[p.dim];
  for (std::int64_t i = 0; i < p.count; ++i) {
    shape[p.dim] = std::min(p.size, extent - i * p.size);
    out.push_back({shape, call.in[0].dtype()});
  }
}

void split_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  ResultShapes shapes;
  split_infer(call, shapes);
  const Pieces p = pieces_of(call.args<SplitArgs>(), x.shape());
  std::int64_t offset = x.offset();
  for (const ResultShape& piece : shapes) {
    out.push_back(alias(x, piece.shape, x.strides(), offset));
    offset += piece.shape[p.dim] * x.strides()[p.dim];
  }
}

void split_rule(const RuleContext& context, Strategies& strategies) {
  const Dims& shape = context.call.in[0].shape();
  const Pieces p = pieces_of(context.call.args<SplitArgs>(), shape);
  for (int d = 0; d < shape.size(); ++d) {
    if (d != p.dim) {
      rules::same_dim(context, strategies, d);
    }
  }
  rules::moves_elements(context, strategies);
}

void split_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Dims& shape = context.in_shapes[0];
  const Pieces p = pieces_of(context.args<SplitArgs>(), shape);
  if (std::all_of(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); })) {
    out[0] = cat(grads, p.dim);
    return;
  }
  // A piece that nobody used has zeros, which slice_backward writes around the others.
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i]) {
      const Tensor whole = views::slice_backward(grads[i], p.dim, shape[p.dim],
                                                 static_cast<std::int64_t>(i) * p.size);
      out[0] = out[0] ? add(out[0], whole) : whole;
    }
  }
}

const Op& split_op =
    register_op<SplitArgs>({.schema = "split(x)",
                            .infer = split_infer,
                            .view = split_view,
                            .rule = split_rule,
                            .backward = split_backward,
                            .about = "Pieces of `size` along dim; the last may be shorter."});

}  // namespace

Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  operands::given("split", "x", x);
  return call(split_op, {x}, SplitArgs{.size = size, .dim = wrap_dim(dim, x.dims(), "split")});
}

Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  operands::given("chunk", "x", x);
  if (chunks < 1) {
    fail(fmt::format("chunk: the number of chunks must be at least 1 (got {})", chunks));
  }
  const std::int64_t extent = x.shape()[wrap_dim(dim, x.dims(), "chunk")];
  const std::int64_t size = extent / chunks + (extent % chunks != 0 ? 1 : 0);
  return split(x, std::max<std::int64_t>(1, size), dim);
}

}  // namespace tessera::ops
