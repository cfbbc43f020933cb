// Rows of tables, and checks of indices. Indices are looked at before, by one block: what is out of
// range is skipped in the kernels, and the host raises the error where it waits.
#include "kernels/index.hpp"
#include "kernels/pieces.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// Arrays: table (its columns), indices, y. integers: the table's first row in the whole, its rows,
/// the stride of a row. Rows that are in other parts of the table are 0.
template <class C>
__device__ void embedding(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const std::int64_t index = Row<std::int64_t>(a, 1, row).get(0) - a.integers[0];
    const bool here = index >= 0 && index < a.integers[1];
    const Row<C> table(a, 0, 0), y(a, 2, row);
    each_of_row(a, [&](std::int64_t i) {
      y.set(i,
            here ? load<C>(table.array.data, table.array.type, table.at(i) + index * a.integers[2])
                 : C{});
    });
  });
}

/// An index of a view with a row for each, mostly i64.
__device__ std::int64_t index_at(const RowArguments& a, std::int64_t row) {
  const Row<std::int64_t> indices(a, 0, row);
  return indices.array.type == DType::i64
             ? static_cast<const std::int64_t*>(indices.array.data)[indices.at(0)]
             : indices.get(0);
}

/// The first of the block's indices that is out of range; their number where none is.
__device__ std::int64_t first_wrong(const IndexArguments& a) {
  constexpr int at_once = 4;
  std::int64_t first = a.indices.rows;
  for (std::int64_t i = threadIdx.x; i < a.indices.rows && first == a.indices.rows;
       i += at_once * std::int64_t{blockDim.x}) {
    std::int64_t index[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const std::int64_t place = i + k * std::int64_t{blockDim.x};
      index[k] = place < a.indices.rows ? index_at(a.indices, place) : 0;
    }
#pragma unroll
    for (int k = at_once - 1; k >= 0; --k) {
      const std::int64_t place = i + k * std::int64_t{blockDim.x};
      const bool ignored = a.kind == ProblemKind::target && index[k] == a.ignored;
      const bool wrong =
          place < a.indices.rows && !ignored && (index[k] < 0 || index[k] >= a.limit);
      first = wrong ? place : first;
    }
  }
  return join_block(first, a.indices.rows, NanMinimum{});
}

/// By one block: notes the first index that is out of range, if none is known yet.
__device__ void look(const IndexArguments& a) {
  const std::int64_t first = first_wrong(a);
  if (threadIdx.x != 0 || first == a.indices.rows || a.problem->kind != ProblemKind::none) return;
  a.problem->op = a.op;
  a.problem->value = Row<std::int64_t>(a.indices, 0, first).get(0);
  a.problem->place = first;
  a.problem->limit = a.limit;
  a.problem->ignored = a.ignored;
  a.problem->kind = a.kind;
}

/// A thread has words of rows, several at once.
template <class Word>
__device__ void move_rows(const EmbeddingArguments& a) {
  constexpr int at_once = 4;
  const auto across = static_cast<unsigned>(a.words);
  const auto count = static_cast<unsigned>(a.look.indices.rows) * across;
  // The first block looks at the indices meanwhile.
  const unsigned step = (gridDim.x - 1) * blockDim.x;
  for (unsigned first = (blockIdx.x - 1) * blockDim.x + threadIdx.x; first < count;
       first += at_once * step) {
    const Word* from[at_once];
    Word moved[at_once] = {};
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const unsigned work = first + static_cast<unsigned>(k) * step;
      const std::int64_t index =
          work < count ? index_at(a.look.indices, work / across) - a.first_row : -1;
      const bool here = index >= 0 && index < a.rows;
      from[k] = here ? static_cast<const Word*>(a.table) + index * a.step + work % across : nullptr;
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      if (from[k] != nullptr) moved[k] = *from[k];
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      const unsigned work = first + static_cast<unsigned>(k) * step;
      if (work < count) static_cast<Word*>(a.y)[work] = moved[k];
    }
  }
}

/// Arrays: targets, y. The number of targets that are not integers[0].
__device__ void counted_rows(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<std::int64_t> targets(a, 0, row);
    const std::int64_t count = row_sum<std::int64_t>(
        a, [&](std::int64_t i) { return std::int64_t{targets.get(i) != a.integers[0]}; });
    if (threadIdx.x == 0) Row<std::int64_t>(a, 1, row).set(0, count);
  });
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(most_looking) find_wrong_index(const IndexArguments a) {
  look(a);
}

__global__ void embedding_pieces(const EmbeddingArguments a) {
  if (blockIdx.x == 0) {
    look(a.look);
  } else {
    move_rows<uint4>(a);
  }
}
__global__ void embedding_f32(const RowArguments a) { embedding<float>(a); }
__global__ void embedding_f64(const RowArguments a) { embedding<double>(a); }
__global__ void counted_rows_i64(const RowArguments a) { counted_rows(a); }

}  // extern "C"
