// Products of vectors, matrices and batches that broadcast: matmul.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

/// The dims of a product: batch dims, then rows and columns where the operands have them.
struct Product {
  const Dims a;
  const Dims b;
  Dims batch;

  explicit Product(const Call& call) : a(call.in[0].shape()), b(call.in[1].shape()) {
    check_one_type(call);
    const std::int64_t inner = b[b.size() >= 2 ? b.size() - 2 : 0];
    if (a.empty() || b.empty() || a.back() != inner) {
      refuse(call, {.wrong = "the shapes do not match",
                    .got = fmt::format("{} x {}", to_string(a), to_string(b))});
    }
    batch = operands::broadcast_shape(call.op.name, batch_of(a), batch_of(b));
  }

  static Dims batch_of(const Dims& shape) {
    Dims batch = shape;
    batch.resize(shape.size() < 2 ? 0 : shape.size() - 2);
    return batch;
  }
  bool has_rows() const { return a.size() >= 2; }
  bool has_columns() const { return b.size() >= 2; }
  std::int64_t rows() const { return has_rows() ? a[a.size() - 2] : 1; }
  std::int64_t columns() const { return has_columns() ? b.back() : 1; }
};

void matmul_infer(const Call& call, ResultShapes& out) {
  const Product p(call);
  Dims shape = p.batch;
  if (p.has_rows()) {
    shape.push_back(p.rows());
  }
  if (p.has_columns()) {
    shape.push_back(p.columns());
  }
  out.push_back({shape, call.in[0].dtype()});
}

/// The batch dims of x, a batch of matrices, as one dim; undefined where strides forbid it, or
/// where x repeats.
Tensor joined_batch(const Tensor& x) {
  const int last = x.dims() - 3;
  std::int64_t count = 1;
  for (int d = last; d >= 0; --d) {
    if (x.shape()[d] != 1 && (x.strides()[d] == 0 || x.strides()[d] != x.strides()[last] * count)) {
      return {};
    }
    count *= x.shape()[d];
  }
  return alias(x, Dims{count, x.shape()[last + 1], x.shape()[last + 2]},
               Dims{x.strides()[last], x.strides()[last + 1], x.strides()[last + 2]}, x.offset());
}

/// Matrix number `index` of a batch.
Tensor matrix_of(const Tensor& x, std::int64_t index) {
  const int batch = x.dims() - 2;
  std::int64_t offset = x.offset();
  for (int d = batch - 1; d >= 0; --d) {
    offset += index % x.shape()[d] * x.strides()[d];
    index /= x.shape()[d];
  }
  return alias(x, Dims{x.shape()[batch], x.shape()[batch + 1]},
               Dims{x.strides()[batch], x.strides()[batch + 1]}, offset);
}

void matmul_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Product p(call);
  const auto repeated = [&](const Tensor& matrix) {
    Dims shape = p.batch;
    shape.push_back(matrix.shape()[matrix.dims() - 2]);
    shape.push_back(matrix.shape().back());
    return expanded_operand(matrix, shape);
  };
  const Tensor a = repeated(p.has_rows() ? call.in[0] : row_of(call.in[0]));
  const Tensor b = repeated(p.has_columns() ? call.in[1] : column_of(call.in[1]));
  const std::int64_t count = p.batch.product();
  const Tensor y = reshaped_operand(out[0], Dims{count, p.rows(), p.columns()});
  if (p.batch.empty()) {
    multiply(w, call, a, b, matrix_of(y, 0), false);
    return;
  }
  const Tensor whole_a = joined_batch(a);
  const Tensor whole_b = joined_batch(b);
  if (whole_a && whole_b) {
    multiply(w, call, whole_a, whole_b, y, false);
    return;
  }
  // All entries use the same memory.
  const std::int64_t computed = w.counts() ? std::min<std::int64_t>(count, 1) : count;
  for (std::int64_t i = 0; i < computed; ++i) {
    multiply(w, call, matrix_of(a, i), matrix_of(b, i), matrix_of(y, i), false);
  }
}

void matmul_rule(const RuleContext& context, Strategies& strategies) {
  const Product p(context.call);
  const auto batch = [&](const Dims& shape, int dim) {
    const int d = dim - p.batch.size() + Product::batch_of(shape).size();
    return d >= 0 && shape[d] == p.batch[dim] ? Shard(d) : Replicate();
  };
  for (int d = 0; d < p.batch.size(); ++d) {
    strategies.push_back(strategy({batch(p.a, d), batch(p.b, d)}, {Shard(d)}));
  }
  if (p.has_rows()) {
    strategies.push_back(strategy({Shard(p.a.size() - 2), Replicate()}, {Shard(p.batch.size())}));
  }
  if (p.has_columns()) {
    strategies.push_back(
        strategy({Replicate(), Shard(p.b.size() - 1)}, {Shard(context.out[0].shape.size() - 1)}));
  }
  strategies.push_back(
      strategy({Shard(p.a.size() - 1), Shard(p.has_columns() ? p.b.size() - 2 : 0)}, {Partial()}));
  pass_partial(context, strategies, 0b01);
  pass_partial(context, strategies, 0b10);
}

void matmul_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  const bool rows = context.in_shapes[0].size() >= 2;
  const bool columns = context.in_shapes[1].size() >= 2;
  const Tensor a = rows ? context.in[0] : unsqueeze(context.in[0], 0);
  const Tensor b = columns ? context.in[1] : unsqueeze(context.in[1], 1);
  Tensor g = columns ? grads[0] : unsqueeze(grads[0], grads[0].dims());
  g = rows ? g : unsqueeze(g, g.dims() - 1);
  if (context.needs(0)) {
    const Tensor d = operands::sum_to(matmul(g, transpose(b, -2, -1)), a.shape());
    out[0] = rows ? d : squeeze(d, 0);
  }
  if (context.needs(1)) {
    const Tensor d = operands::sum_to(matmul(transpose(a, -2, -1), g), b.shape());
    out[1] = columns ? d : squeeze(d, 1);
  }
}

const Op& matmul_op = register_op({.schema = "matmul(a, b)",
                                   .infer = matmul_infer,
                                   .cpu = in_workspace<matmul_cpu>,
                                   .workspace = workspace_of<matmul_cpu>,
                                   .rule = matmul_rule,
                                   .flops = last_dim_flops<0>,
                                   .backward = matmul_backward,
                                   .saves_inputs = saves_all,
                                   .gradients_apart = true,
                                   .about = "Products of matrices whose batches broadcast; a "
                                            "vector is a row on the left, a column on the right."});

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  operands::given("matmul", "a", a);
  operands::given("matmul", "b", b);
  if (a.dims() == 2 && b.dims() == 2) {
    return mm(a, b);
  }
  if (a.dims() > 2 && b.dims() == 2) {
    return linear(a, transpose(b, 0, 1));  // one product of all rows
  }
  if (a.dims() == 3 && b.dims() == 3 && a.size(0) == b.size(0)) {
    return bmm(a, b);
  }
  if (a.dims() == 2 && b.dims() == 1) {
    return mv(a, b);
  }
  return a.dims() == 1 && b.dims() == 1 ? dot(a, b) : call_one(matmul_op, {a, b});
}

}  // namespace tessera::ops
