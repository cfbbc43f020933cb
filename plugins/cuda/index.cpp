// Rows of tables, and checks of indices.
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
#include "kernels/index.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

struct EmbeddingArgs {
  SpecArgument whole;  // of the table
};
struct CountArgs {
  std::int64_t ignore_index;
};

/// The shape [indices..., width].
Dims rows_shape(const Tensor& indices, std::int64_t width) {
  Dims shape = indices.shape();
  shape.push_back(width);
  return shape;
}

IndexArguments looked_at(const Call& call, const Tensor& indices, std::int64_t limit,
                         ProblemKind kind, std::int64_t ignored) {
  auto& driver = static_cast<CudaDriver&>(driver_of(indices.device()));
  return {Rows(indices.shape(), {}).whole(indices).finish(),
          limit,
          ignored,
          driver.problem(),
          call.op.id,
          kind};
}

/// Queues rows in words of 16 bytes, which are looked at by the same launch; if they are none,
/// nothing, and false.
bool move_rows(const Call& call, const Tensor& y, const Part& rows) {
  constexpr std::int64_t word_bytes = 16;
  const Tensor& table = call.in[0];
  const Tensor& indices = call.in[1];
  const auto each = static_cast<std::int64_t>(elements_of_piece(table.dtype()));
  const auto is_aligned = [](const Tensor& x) {
    return reinterpret_cast<std::uintptr_t>(x.device_address()) % word_bytes == 0;
  };
  const std::int64_t width = table.shape()[1];
  const bool fits = table.dtype() == y.dtype() && width % each == 0 && table.strides()[1] == 1 &&
                    table.strides()[0] % each == 0 && y.is_contiguous() && is_aligned(table) &&
                    is_aligned(y) && y.numel() / each < std::int64_t{1} << 31;
  if (!fits || y.numel() == 0 || table.numel() == 0) {
    return false;
  }
  const EmbeddingArguments a = {.look = looked_at(call, indices, rows.whole, ProblemKind::index, 0),
                                .table = table.device_address(),
                                .y = y.device_address(),
                                .first_row = rows.first,
                                .rows = table.shape()[0],
                                .words = width / each,
                                .step = table.strides()[0] / each};
  launch(y, "embedding_pieces", 1 + blocks_for(y.numel() / each), threads_per_block, a);
  return true;
}

void embedding(const Call& call, std::span<Tensor> out) {
  const Tensor& table = call.in[0];
  const Tensor& indices = call.in[1];
  check_index_type(call, indices);
  const Part rows = part_of(call.args<EmbeddingArgs>().whole, 0, table.shape()[0]);
  if (move_rows(call, out[0], rows)) {
    return;
  }
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

}  // namespace

void look_at(const Call& call, const Tensor& indices, std::int64_t limit, ProblemKind kind,
             std::int64_t ignored) {
  if (indices.numel() == 0) {
    return;
  }
  const IndexArguments arguments = looked_at(call, indices, limit, kind, ignored);
  launch(indices, "find_wrong_index", 1,
         indices.numel() > most_looking ? most_looking : threads_per_block, arguments);
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
}

}  // namespace tessera::cuda
