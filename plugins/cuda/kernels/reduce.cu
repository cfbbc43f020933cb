// Sums over dims, and up to each element. By rows, where a row is near together in memory, else by
// columns.
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

/// Arrays: x, y. The logarithm of the sum of the exponentials of each row; minus infinity of none.
template <class C>
__device__ void log_sum_of_rows(const RowArguments& a) {
  constexpr C minus_infinity = -static_cast<C>(INFINITY);
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row);
    C top = minus_infinity;
    each_of_row(a, [&](std::int64_t i) { top = Larger{}(x.get(i), top); });
    top = join_block(top, minus_infinity, Larger{});
    // Infinity - infinity would be no number.
    const C reference = top == minus_infinity || top == -minus_infinity ? C{} : top;
    const C sum = row_sum<C>(a, [&](std::int64_t i) { return math::exp(x.get(i) - reference); });
    if (threadIdx.x == 0) Row<C>(a, 1, row).set(0, math::log(sum) + reference);
  });
}

/// Arrays: x, y. The sum of each element and those before it in its row, or, with integers[0],
/// after it. The threads of a block take one element each at a time.
template <class C>
__device__ void sums_along_rows(const RowArguments& a) {
  __shared__ C totals[most_warps];
  const unsigned lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row), y(a, 1, row);
    C before = {};
    for (std::int64_t first = 0; first < a.length; first += blockDim.x) {
      const std::int64_t number = first + threadIdx.x;
      const bool exists = number < a.length;
      const std::int64_t i = a.integers[0] != 0 ? a.length - 1 - number : number;
      C sum = exists ? x.get(i) : C{};
      for (unsigned by = 1; by < lanes; by *= 2) {
        const C other = __shfl_up_sync(~0U, sum, by);
        if (lane >= by) sum += other;
      }
      __syncthreads();  // the totals before have been read
      if (lane == lanes - 1) totals[warp] = sum;
      __syncthreads();
      C of_block = before;
      for (unsigned other = 0; other < blockDim.x / lanes; ++other) {
        if (other == warp) sum += of_block;
        of_block += totals[other];
      }
      before = of_block;
      if (exists) y.set(i, sum);
    }
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
__global__ void log_sum_of_rows_f32(const RowArguments a) { log_sum_of_rows<float>(a); }
__global__ void log_sum_of_rows_f64(const RowArguments a) { log_sum_of_rows<double>(a); }
__global__ void sums_along_rows_f64(const RowArguments a) { sums_along_rows<double>(a); }
__global__ void sums_along_rows_i64(const RowArguments a) { sums_along_rows<std::int64_t>(a); }
__global__ void sum_squares_f32(const RowArguments a) { sum_rows<float, true>(a); }
__global__ void sum_squares_f64(const RowArguments a) { sum_rows<double, true>(a); }

}  // extern "C"
