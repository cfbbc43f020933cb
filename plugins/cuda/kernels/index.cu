// Rows of tables, and checks of indices. Indices are looked at before, by one block: what is out of
// range is skipped in the kernels, and the host raises the error where it waits.
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

/// By one block: the first index that is out of range, if none is known yet.
__global__ void find_wrong_index(const IndexArguments a) {
  std::int64_t first = a.indices.rows;
  for (std::int64_t i = threadIdx.x; i < a.indices.rows && first == a.indices.rows;
       i += blockDim.x) {
    const std::int64_t index = Row<std::int64_t>(a.indices, 0, i).get(0);
    const bool ignored = a.kind == ProblemKind::target && index == a.ignored;
    if (!ignored && (index < 0 || index >= a.limit)) first = i;
  }
  first = join_block(first, a.indices.rows, NanMinimum{});
  if (threadIdx.x != 0 || first == a.indices.rows || a.problem->kind != ProblemKind::none) return;
  a.problem->op = a.op;
  a.problem->value = Row<std::int64_t>(a.indices, 0, first).get(0);
  a.problem->place = first;
  a.problem->limit = a.limit;
  a.problem->ignored = a.ignored;
  a.problem->kind = a.kind;
}

__global__ void embedding_f32(const RowArguments a) { embedding<float>(a); }
__global__ void embedding_f64(const RowArguments a) { embedding<double>(a); }
__global__ void counted_rows_i64(const RowArguments a) { counted_rows(a); }

}  // extern "C"
