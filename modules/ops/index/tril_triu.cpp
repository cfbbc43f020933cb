// tril, triu and one_hot.
module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

void same_infer(const Call& call, ResultShapes& out) {
  if (call.in[0].dims() < 2) {
    refuse(call, fmt::format("x needs two dims (got {})", to_string(call.in[0].shape())));
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
  auto* data = static_cast<std::byte*>(out.raw_data());
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
  const std::int64_t diagonal = call.read().integer();
  keep_columns(call, out[0], [&](std::int64_t row, std::int64_t columns) {
    return Columns{0, within(row + 1, diagonal, columns)};
  });
}

void triu_cpu(const Call& call, std::span<Tensor> out) {
  const std::int64_t diagonal = call.read().integer();
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

const Op& tril_op = register_op({
    .schema = "tril(x; diagonal: int)",
    .infer = same_infer,
    .cpu = tril_cpu,
    .rule = rule,
    .backward = backward,
    .about = "The lower triangle of matrices, zeros above a diagonal.",
});

const Op& triu_op = register_op({
    .schema = "triu(x; diagonal: int)",
    .infer = same_infer,
    .cpu = triu_cpu,
    .rule = rule,
    .backward = backward,
    .about = "The upper triangle of matrices, zeros below a diagonal.",
});

// one_hot

void one_hot_infer(const Call& call, ResultShapes& out) {
  const std::int64_t classes = call.read().integer();
  if (call.in[0].dtype() != DType::i64 || classes < 1) {
    refuse(call, fmt::format("expected i64 numbers and at least one class (got {}, {})",
                             name_of(call.in[0].dtype()), classes));
  }
  Dims shape = call.in[0].shape();
  shape.push_back(classes);
  out.push_back({shape, DType::i64});
}

void one_hot_cpu(const Call& call, std::span<Tensor> out) {
  const Tensor x = contiguous_operand(call.in[0]);
  const std::int64_t classes = call.read().integer();
  auto* rows = pointer<std::int64_t>(out[0]);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const std::int64_t which = pointer<std::int64_t>(x)[i];
    if (which < 0 || which >= classes) {
      refuse(call, fmt::format("class {} is out of range (expected 0 to {})", which, classes - 1));
    }
    for (std::int64_t c = 0; c < classes; ++c) {
      rows[i * classes + c] = c == which ? 1 : 0;
    }
  }
}

void one_hot_rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
}

const Op& one_hot_op = register_op({
    .schema = "one_hot(x; num_classes: int)",
    .infer = one_hot_infer,
    .cpu = one_hot_cpu,
    .rule = one_hot_rule,
    .about = "1 at the class of each element, 0 elsewhere (i64).",
});

}  // namespace

Tensor tril(const Tensor& x, std::int64_t diagonal) {
  return call_one(tril_op, {x}, Attributes().add(diagonal));
}

Tensor triu(const Tensor& x, std::int64_t diagonal) {
  return call_one(triu_op, {x}, Attributes().add(diagonal));
}

Tensor one_hot(const Tensor& x, std::int64_t num_classes) {
  return call_one(one_hot_op, {x}, Attributes().add(num_classes));
}

}  // namespace tessera::ops
