// The triangles of matrices: tril, triu.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

struct TriangleArgs {
  std::int64_t diagonal;
};

void same_infer(const Call& call, ResultShapes& out) {
  if (call.in[0].dims() < 2) {
    refuse(call, {.wrong = "x must have at least two dims", .got = to_string(call.in[0].shape())});
  }
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// Keeps the columns [first, last) of each row and clears the others.
template <class Keep>
void keep_columns(const Call& call, const Tensor& out, Keep keep) {
  copy_into(out, call.in[0]);
  if (out.numel() == 0) {
    return;
  }
  const std::int64_t rows = out.size(-2);
  const std::int64_t columns = out.size(-1);
  const std::size_t width = size_of(out.dtype());
  auto* data = pointer<std::byte>(out);
  for (std::int64_t row = 0; row < out.numel() / columns; ++row) {
    const auto [first, last] = keep(row % rows, columns);
    std::memset(data, 0, static_cast<std::size_t>(first) * width);
    std::memset(data + static_cast<std::size_t>(last) * width, 0,
                static_cast<std::size_t>(columns - last) * width);
    data += static_cast<std::size_t>(columns) * width;
  }
}

struct Columns {
  std::int64_t first;
  std::int64_t last;
};

/// row + diagonal, where that is one of `columns`; else the end that it is beyond.
std::int64_t within(std::int64_t row, std::int64_t diagonal, std::int64_t columns) {
  if (diagonal < -row) {
    return 0;
  }
  return diagonal > columns - row ? columns : row + diagonal;
}

void tril_cpu(const Call& call, std::span<Tensor> out) {
  const std::int64_t diagonal = call.args<TriangleArgs>().diagonal;
  keep_columns(call, out[0], [&](std::int64_t row, std::int64_t columns) {
    return Columns{0, within(row + 1, diagonal, columns)};
  });
}

void triu_cpu(const Call& call, std::span<Tensor> out) {
  const std::int64_t diagonal = call.args<TriangleArgs>().diagonal;
  keep_columns(call, out[0], [&](std::int64_t row, std::int64_t columns) {
    return Columns{within(row, diagonal, columns), columns};
  });
}

/// Any dim but the two of the matrices.
void rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims() - 2; ++d) {
    rules::same_dim(context, strategies, d);
  }
  pass_partial(context, strategies, 0b1);
}

/// The gradient is cut as x was.
void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = call_one(context.op, {grads[0]}, context.attributes);
}

const Op& tril_op = register_op<TriangleArgs>({
    .schema = "tril(x)",
    .infer = same_infer,
    .cpu = tril_cpu,
    .rule = rule,
    .backward = backward,
    .about = "The lower triangle of matrices, zeros above a diagonal.",
});

const Op& triu_op = register_op<TriangleArgs>({
    .schema = "triu(x)",
    .infer = same_infer,
    .cpu = triu_cpu,
    .rule = rule,
    .backward = backward,
    .about = "The upper triangle of matrices, zeros below a diagonal.",
});

}  // namespace

Tensor tril(const Tensor& x, std::int64_t diagonal) {
  return call_one(tril_op, {x}, TriangleArgs{.diagonal = diagonal});
}

Tensor triu(const Tensor& x, std::int64_t diagonal) {
  return call_one(triu_op, {x}, TriangleArgs{.diagonal = diagonal});
}

}  // namespace tessera::ops
