// Views of the pieces along a dim: split, split_with_sizes, chunk.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>
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

struct SizesArgs {
  Dims sizes;
  std::int64_t dim;
};

/// Where pieces begin and end along the dim.
struct Pieces {
  int dim;
  std::vector<std::int64_t> lengths;
};

Pieces pieces_of(const SplitArgs& args, const Dims& x) {
  const std::int64_t size = args.size;
  const int dim = wrap_dim(args.dim, x.size(), "split");
  if (size < 1) {
    fail({.thing = "split",
          .wrong = "the size of a piece must be at least 1",
          .got = fmt::format("{}", size)});
  }
  const std::int64_t count =
      std::max<std::int64_t>(1, x[dim] / size + (x[dim] % size != 0 ? 1 : 0));
  Pieces pieces{dim, std::vector<std::int64_t>(static_cast<std::size_t>(count), size)};
  pieces.lengths.back() = x[dim] - (count - 1) * size;
  return pieces;
}

void check_sizes(std::span<const std::int64_t> sizes, std::int64_t extent) {
  if (sizes.empty()) {
    fail({.thing = "split_with_sizes", .wrong = "no sizes are given", .expected = "at least one"});
  }
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0) {
      fail({.thing = "split_with_sizes",
            .wrong = "a size must be 0 or more",
            .got = fmt::format("{}", size)});
    }
    sum = checked_add(sum, size, "split_with_sizes");
  }
  if (sum != extent) {
    fail({.thing = "split_with_sizes",
          .wrong = "the sizes do not cover the dim",
          .expected = fmt::format("a sum of {}", extent),
          .got = fmt::format("{}", sum),
          .advice = "change the sizes, or narrow() the tensor"});
  }
}

Pieces pieces_of(const SizesArgs& args, const Dims& x) {
  const int dim = wrap_dim(args.dim, x.size(), "split_with_sizes");
  check_sizes(args.sizes.span(), x[dim]);
  return {dim, {args.sizes.begin(), args.sizes.end()}};
}

template <class Args>
void split_infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[0].shape();
  const Pieces pieces = pieces_of(call.args<Args>(), shape);
  for (const std::int64_t length : pieces.lengths) {
    shape[pieces.dim] = length;
    out.push_back({shape, call.in[0].dtype()});
  }
}

template <class Args>
void split_view(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Pieces pieces = pieces_of(call.args<Args>(), x.shape());
  Dims shape = x.shape();
  std::int64_t offset = x.offset();
  for (const std::int64_t length : pieces.lengths) {
    shape[pieces.dim] = length;
    out.push_back(alias(x, shape, x.strides(), offset));
    offset += length * x.strides()[pieces.dim];
  }
}

template <class Args>
void split_rule(const RuleContext& context, Strategies& strategies) {
  const Dims& shape = context.call.in[0].shape();
  const Pieces pieces = pieces_of(context.call.args<Args>(), shape);
  for (int d = 0; d < shape.size(); ++d) {
    if (d != pieces.dim) {
      rules::same_dim(context, strategies, d);
    }
  }
  rules::moves_elements(context, strategies);
}

template <class Args>
void split_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  const Dims& shape = context.in_shapes[0];
  const Pieces pieces = pieces_of(context.args<Args>(), shape);
  if (std::all_of(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); })) {
    out[0] = cat(grads, pieces.dim);
    return;
  }
  // A piece that nobody used has zeros, which slice_backward writes around the others.
  std::int64_t start = 0;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i]) {
      const Tensor whole = views::slice_backward(grads[i], pieces.dim, shape[pieces.dim], start);
      out[0] = out[0] ? add(out[0], whole) : whole;
    }
    start += pieces.lengths[i];
  }
}

template <class Args>
const Op& split_of(const char* schema, const char* about) {
  return register_op<Args>({.schema = schema,
                            .infer = split_infer<Args>,
                            .view = split_view<Args>,
                            .rule = split_rule<Args>,
                            .backward = split_backward<Args>,
                            .about = about});
}

const Op& split_op =
    split_of<SplitArgs>("split(x)", "Pieces of `size` along dim; the last may be shorter.");
const Op& sizes_op = split_of<SizesArgs>("split_with_sizes(x)", "Pieces of these sizes along dim.");

}  // namespace

Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  operands::given("split", "x", x);
  return call(split_op, {x}, SplitArgs{.size = size, .dim = wrap_dim(dim, x.dims(), "split")});
}

Tensors split_with_sizes(const Tensor& x, std::span<const std::int64_t> sizes, std::int64_t dim) {
  operands::given("split_with_sizes", "x", x);
  const int d = wrap_dim(dim, x.dims(), "split_with_sizes");
  check_sizes(sizes, x.shape()[d]);
  constexpr auto most = static_cast<std::size_t>(max_dims);
  if (sizes.size() <= most) {
    return call(sizes_op, {x}, SizesArgs{.sizes = Dims(sizes), .dim = d});
  }
  // An operator's argument holds `most` sizes: pieces of several sizes, which are split again.
  const std::size_t group = (sizes.size() + most - 1) / most;
  std::vector<std::int64_t> totals;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i % group == 0) {
      totals.push_back(0);
    }
    totals.back() += sizes[i];
  }
  const Tensors parts = split_with_sizes(x, totals, d);
  Tensors pieces;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t first = i * group;
    for (Tensor& piece : split_with_sizes(
             parts[i], sizes.subspan(first, std::min(group, sizes.size() - first)), d)) {
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  operands::given("chunk", "x", x);
  if (chunks < 1) {
    fail({.thing = "chunk",
          .wrong = "the number of chunks must be at least 1",
          .got = fmt::format("{}", chunks)});
  }
  const std::int64_t extent = x.shape()[wrap_dim(dim, x.dims(), "chunk")];
  const std::int64_t size = extent / chunks + (extent % chunks != 0 ? 1 : 0);
  return split(x, std::max<std::int64_t>(1, size), dim);
}

}  // namespace tessera::ops
