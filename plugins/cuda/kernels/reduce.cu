// Sums over dims. By rows, where a row is near together in memory, else by columns.
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

/// Arrays: x, y. The sum of each row divided by numbers[0], or of x's squares.
template <class C, bool squares = false>
__device__ void sum_rows(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row);
    const C sum = row_sum<C>(a, [&](std::int64_t i) {
      const C value = x.get(i);
      return squares ? value * value : value;
    });
    if (threadIdx.x == 0) Row<C>(a, 1, row).set(0, sum / static_cast<C>(a.numbers[0]));
  });
}

/// Arrays: x, y. The element of each row that wins against all others; a row has elements.
template <class C, class Winner>
__device__ void winner_of_rows(const RowArguments& a) {
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row);
    const C first = x.get(0);
    C best = first;
    each_of_row(a, [&](std::int64_t i) { best = Winner{}(x.get(i), best); });
    best = join_block(best, first, Winner{});
    if (threadIdx.x == 0) Row<C>(a, 1, row).set(0, best);
  });
}

/// The sums over the rows, for each element of a row.
template <class C>
__device__ void sum_columns(const RowArguments& a) {
  each_column<C>(
      a, [&](std::int64_t row, std::int64_t i) { return Row<C>(a, 0, row).get(i); },
      [&](std::int64_t i, C sum) { Row<C>(a, 1, 0).set(i, sum / static_cast<C>(a.numbers[0])); });
}

}  // namespace

extern "C" {

__global__ void sum_rows_f32(const RowArguments a) { sum_rows<float>(a); }
__global__ void sum_rows_f64(const RowArguments a) { sum_rows<double>(a); }
__global__ void sum_rows_i64(const RowArguments a) { sum_rows<std::int64_t>(a); }
__global__ void sum_columns_f32(const RowArguments a) { sum_columns<float>(a); }
__global__ void sum_columns_f64(const RowArguments a) { sum_columns<double>(a); }
__global__ void sum_columns_i64(const RowArguments a) { sum_columns<std::int64_t>(a); }
__global__ void largest_of_rows_f32(const RowArguments a) { winner_of_rows<float, Larger>(a); }
__global__ void largest_of_rows_f64(const RowArguments a) { winner_of_rows<double, Larger>(a); }
__global__ void largest_of_rows_i64(const RowArguments a) {
  winner_of_rows<std::int64_t, Larger>(a);
}
__global__ void smallest_of_rows_f32(const RowArguments a) { winner_of_rows<float, Smaller>(a); }
__global__ void smallest_of_rows_f64(const RowArguments a) { winner_of_rows<double, Smaller>(a); }
__global__ void smallest_of_rows_i64(const RowArguments a) {
  winner_of_rows<std::int64_t, Smaller>(a);
}
__global__ void sum_squares_f32(const RowArguments a) { sum_rows<float, true>(a); }
__global__ void sum_squares_f64(const RowArguments a) { sum_rows<double, true>(a); }

}  // extern "C"
