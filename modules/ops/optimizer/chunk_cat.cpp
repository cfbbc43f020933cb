// Lists of tensors laid out for collectives: chunk_cat.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct ChunkCatArgs {
  std::int64_t dim;
  std::int64_t chunks;
};

struct Chunks {
  int dim;
  std::int64_t count;
};

Chunks chunks_of(const Call& call) {
  const auto args = call.args<ChunkCatArgs>();
  return {operands::front_dim("chunk_cat", args.dim, call.in[0].dims()), args.chunks};
}

/// One tensor as [outer, extent, inner] around the dim that is cut, in chunks of `chunk`.
struct ChunkedDims {
  std::int64_t outer = 1;
  std::int64_t extent = 1;
  std::int64_t inner = 1;
  std::int64_t chunk = 0;
};

ChunkedDims cut_of(const Tensor& x, const Chunks& chunks) {
  ChunkedDims cut;
  for (int d = 0; d < x.dims(); ++d) {
    (d < chunks.dim ? cut.outer : d > chunks.dim ? cut.inner : cut.extent) *= x.shape()[d];
  }
  cut.chunk = cut.extent / chunks.count + (cut.extent % chunks.count != 0 ? 1 : 0);
  return cut;
}

void chunk_cat_infer(const Call& call, ResultShapes& out) {
  const Chunks chunks = chunks_of(call);
  if (chunks.count < 1) {
    refuse(call, {.wrong = "the number of chunks is wrong",
                  .expected = "1 or more",
                  .got = fmt::format("{}", chunks.count)});
  }
  check_one_type(call);
  Dims shape;
  std::int64_t width = 0;
  for (const Tensor& x : call.in) {
    bool fits = chunks.dim >= 0 && x.dims() > chunks.dim;
    for (int d = 0; fits && d < chunks.dim; ++d) {
      fits = x.shape()[d] == call.in[0].shape()[d];
    }
    if (!fits) {
      refuse(call, {.wrong = fmt::format("a tensor of shape {} cannot be cut along dim {}, or "
                                         "differs from the first tensor ({}) in the dims before it",
                                         to_string(x.shape()), chunks.dim,
                                         to_string(call.in[0].shape()))});
    }
    const ChunkedDims cut = cut_of(x, chunks);
    width += cut.chunk * cut.inner;
  }
  for (int d = 0; d < chunks.dim; ++d) {
    shape.push_back(call.in[0].shape()[d]);
  }
  shape.push_back(chunks.count);
  shape.push_back(width);
  out.push_back({shape, call.in[0].dtype()});
}

void chunk_cat_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Chunks chunks = chunks_of(call);
  const std::size_t size = size_of(out[0].dtype());
  const std::int64_t width = out[0].shape().back();
  auto* const to = pointer<std::byte>(w, out[0]);
  if (out[0].numel() != 0 && !w.counts()) {
    std::memset(to, 0, static_cast<std::size_t>(out[0].numel()) * size);
  }
  std::int64_t column = 0;
  for (const Tensor& operand : call.in) {
    const Workspace::Scope of_operand(w);
    const Tensor x = contiguous_operand(w, operand);
    if (w.counts()) {
      continue;
    }
    const ChunkedDims cut = cut_of(x, chunks);
    const auto* const from = pointer<const std::byte>(x);
    for (std::int64_t row = 0; row < cut.outer * chunks.count; ++row) {
      const std::int64_t first = row % chunks.count * cut.chunk;
      const std::int64_t length = std::min(cut.chunk, cut.extent - first);
      if (length > 0 && cut.inner > 0) {
        const std::int64_t at = (row / chunks.count * cut.extent + first) * cut.inner;
        std::memcpy(to + static_cast<std::size_t>(row * width + column) * size,
                    from + static_cast<std::size_t>(at) * size,
                    static_cast<std::size_t>(length * cut.inner) * size);
      }
    }
    column += cut.chunk * cut.inner;
  }
}

/// Whole tensors, or terms of them; the dims in front of the cut one are the result's too.
void chunk_cat_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < chunks_of(context.call).dim; ++d) {
    rules::same_dim(context, strategies, d);
  }
  rules::linear(context, strategies);
}

const Op& chunk_cat_op =
    register_op<ChunkCatArgs>({.schema = "chunk_cat(tensors...)",
                               .infer = chunk_cat_infer,
                               .cpu = in_workspace<chunk_cat_cpu>,
                               .workspace = workspace_of_copies<chunk_cat_cpu>,
                               .rule = chunk_cat_rule,
                               .about = "Each tensor cut into chunks along dim, padded with zeros; "
                                        "row i contains chunk i of all tensors."});

}  // namespace

Tensor chunk_cat(std::span<const Tensor> tensors, std::int64_t dim, std::int64_t chunks) {
  if (tensors.empty()) {
    fail({.thing = "chunk_cat", .wrong = "the list is empty", .expected = "at least one tensor"});
  }
  operands::given("chunk_cat", "tensors[0]", tensors[0]);
  return call(chunk_cat_op, tensors,
              ChunkCatArgs{operands::front_dim("chunk_cat", dim, tensors[0].dims()), chunks})[0];
}

}  // namespace tessera::ops
