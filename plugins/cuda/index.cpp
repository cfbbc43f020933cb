// Rows of tables, and losses of classes.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "indices.hpp"
#include "kernels.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

struct EmbeddingArgs {
  SpecArgument whole;  // of the table
};
struct CountArgs {
  std::int64_t ignore_index;
};
struct CrossEntropyArgs {
  std::int64_t ignore_index;
  bool loss_parallel;
  SpecArgument whole{};  // of the logits
};

/// Which part of a dim is here: its first place, how long all parts are.
struct Part {
  std::int64_t first = 0;
  std::int64_t whole = 0;
};
Part part_of(const SpecArgument& whole, int dim, std::int64_t here) {
  return whole ? Part{local_offset(*whole)[dim], whole->shape[dim]} : Part{0, here};
}

/// The shape [indices..., width].
Dims rows_shape(const Tensor& indices, std::int64_t width) {
  Dims shape = indices.shape();
  shape.push_back(width);
  return shape;
}

void embedding(const Call& call, std::span<Tensor> out) {
  const Tensor& table = call.in[0];
  const Tensor& indices = call.in[1];
  check_index_type(call, indices);
  const Part rows = part_of(call.args<EmbeddingArgs>().whole, 0, table.shape()[0]);
  look_at(call, indices, rows.whole, ProblemKind::index);
  if (out[0].numel() == 0) {
    return;
  }
  Rows::of_last_dim(rows_shape(indices, table.shape()[1]))
      .shared(table.dims() == 2
                  ? alias(table, Dims{table.shape()[1]}, Dims{table.strides()[1]}, table.offset())
                  : table)
      .per_row(indices)
      .whole(out[0])
      .integer(rows.first)
      .integer(table.shape()[0])
      .integer(table.strides()[0])
      .launch_rows(out[0], with_type("embedding", table.dtype()));
}

// ---- cross entropy ----

/// logits and targets are the call's first operands; results have one number for each row.
void of_logits(const Call& call, const std::string& kernel, std::span<const Tensor> results) {
  const Tensor& logits = call.in[0];
  const Tensor& targets = call.in[1];
  const auto arguments = call.args<CrossEntropyArgs>();
  const Part classes = part_of(arguments.whole, logits.dims() - 1, logits.shape().back());
  look_at(call, targets, classes.whole, ProblemKind::target, arguments.ignore_index);
  Rows rows = Rows::of_last_dim(logits.shape());
  rows.whole(logits).per_row(targets);
  for (const Tensor& result : results) {
    rows.per_row(result);
  }
  rows.integer(classes.first)
      .integer(arguments.ignore_index)
      .launch_rows(logits, with_type(kernel, logits.dtype()));
}

void cross_entropy_rows(const Call& call, std::span<Tensor> out) {
  of_logits(call, "cross_entropy", out);
}

void logits_statistics(const Call& call, std::span<Tensor> out) {
  of_logits(call, "logits_statistics", out);
}

void counted_rows(const Call& call, std::span<Tensor> out) {
  const Tensor& targets = call.in[0];
  Dims all;
  for (int dim = 0; dim < targets.dims(); ++dim) {
    all.push_back(dim);
  }
  Rows(targets.shape(), all)
      .whole(targets)
      .per_row(out[0])
      .integer(call.args<CountArgs>().ignore_index)
      .launch_rows(out[0], "counted_rows_i64");
}

/// The losses are added from the logits again, so that they need no memory.
void cross_entropy(const Call& call, std::span<Tensor> out) {
  const Tensor results[] = {Tensor(), out[1]};
  of_logits(call, "cross_entropy", results);
  const Tensor& logits = call.in[0];
  const auto arguments = call.args<CrossEntropyArgs>();
  Rows::of_last_dim(logits.shape())
      .whole(logits)
      .per_row(call.in[1])
      .per_row(out[1])
      .shared(out[0])
      .integer(part_of(arguments.whole, logits.dims() - 1, logits.shape().back()).first)
      .integer(arguments.ignore_index)
      .launch_blocks(logits, with_type("cross_entropy_sum", logits.dtype()), 1);
}

void cross_entropy_backward(const Call& call, std::span<Tensor> out) {
  const Tensor& dloss = call.in[0];
  const Tensor& logits = call.in[1];
  const auto arguments = call.args<CrossEntropyArgs>();
  const Part classes = part_of(arguments.whole, logits.dims() - 1, logits.shape().back());
  Rows rows = Rows::of_last_dim(logits.shape());
  dloss.dims() == 0 ? rows.shared(dloss) : rows.per_row(dloss);
  rows.whole(logits)
      .per_row(call.in[2])
      .per_row(call.in[3])
      .whole(out[0])
      .integer(classes.first)
      .integer(arguments.ignore_index)
      .launch_rows(out[0], with_type("cross_entropy_backward", logits.dtype()));
}

}  // namespace

void look_at(const Call& call, const Tensor& indices, std::int64_t limit, ProblemKind kind,
             std::int64_t ignored) {
  if (indices.numel() == 0) {
    return;
  }
  auto& driver = static_cast<CudaDriver&>(driver_of(indices.device()));
  const IndexArguments arguments = {Rows(indices.shape(), {}).whole(indices).finish(),
                                    limit,
                                    ignored,
                                    driver.problem(),
                                    call.op.id,
                                    kind};
  launch(indices, "find_wrong_index", 1, threads_per_block, arguments);
}

void check_index_type(const Call& call, const Tensor& indices) {
  if (indices.dtype() != DType::i64 && indices.dtype() != DType::i32) {
    fail({.thing = call.op.name,
          .wrong = "indices must be i64 or i32",
          .got = std::string(name_of(indices.dtype()))});
  }
}

void add_indexing(KernelTable& table) {
  table["embedding"] = {embedding};
  table["counted_rows"] = {counted_rows};
  table["cross_entropy"] = {cross_entropy};
  table["cross_entropy_rows"] = {cross_entropy_rows};
  table["logits_statistics"] = {logits_statistics};
  table["cross_entropy_backward"] = {cross_entropy_backward};
}

}  // namespace tessera::cuda
