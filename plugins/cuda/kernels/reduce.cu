// Sums over dims, and sums, products and recurrences up to each element. By rows, where a row is
// near together in memory, else by columns.
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
    each_of_row(a, [&](std::int64_t i) { top = NanMaximum{}(x.get(i), top); });
    top = join_block(top, minus_infinity, NanMaximum{});
    // Infinity - infinity would be no number.
    const C reference = top == minus_infinity || top == -minus_infinity ? C{} : top;
    const C sum = row_sum<C>(a, [&](std::int64_t i) { return math::exp(x.get(i) - reference); });
    if (threadIdx.x == 0) Row<C>(a, 1, row).set(0, math::log(sum) + reference);
  });
}

struct Product {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a * b;
  }
};
/// Of two logarithms, that of the sum of what they are of.
struct LogSum {
  __device__ double operator()(double a, double b) const {
    const double larger = NanMaximum{}(a, b);
    if (larger != larger || larger == INFINITY || larger == -INFINITY) return larger;
    return larger + math::log1p(math::exp((a < b ? a : b) - larger));
  }
};

/// The number of an element in the order of a scan, which integers[0] turns round.
__device__ std::int64_t place_in_scan(const RowArguments& a, std::int64_t number) {
  return a.integers[0] != 0 ? a.length - 1 - number : number;
}

/// Arrays: x, y. Each element joined with those before it in its row, or, with integers[0], after
/// it. The threads of a block take one element each at a time.
template <class C, class Join>
__device__ void scan_rows(const RowArguments& a, C nothing, Join join) {
  __shared__ C totals[most_warps];
  const unsigned lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
  each_row(a, [&](std::int64_t row) {
    const Row<C> x(a, 0, row), y(a, 1, row);
    C before = nothing;
    for (std::int64_t first = 0; first < a.length; first += blockDim.x) {
      const std::int64_t number = first + threadIdx.x;
      const bool exists = number < a.length;
      const std::int64_t i = place_in_scan(a, number);
      C value = exists ? x.get(i) : nothing;
      for (unsigned by = 1; by < lanes; by *= 2) {
        const C other = __shfl_up_sync(~0U, value, by);
        if (lane >= by) value = join(value, other);
      }
      __syncthreads();  // the totals before have been read
      if (lane == lanes - 1) totals[warp] = value;
      __syncthreads();
      C of_block = before;
      for (unsigned other = 0; other < blockDim.x / lanes; ++other) {
        if (other == warp) value = join(value, of_block);
        of_block = join(of_block, totals[other]);
      }
      before = of_block;
      if (exists) y.set(i, value);
    }
  });
}

/// Arrays: x, factor, y. Each element plus its factor times the result before it in its row, or,
/// with integers[0], after it. A thread has a row: joined factors could be infinite where no result
/// is.
__device__ void recur_along_rows(const RowArguments& a) {
  for (std::int64_t row = thread_place(); row < a.rows; row += thread_count()) {
    const Row<double> x(a, 0, row), factor(a, 1, row), y(a, 2, row);
    double value = 0;
    for (std::int64_t number = 0; number < a.length; ++number) {
      const std::int64_t i = place_in_scan(a, number);
      // The first factor meets nothing, not even when it is infinite.
      value = x.get(i) + (number == 0 ? 0 : factor.get(i) * value);
      y.set(i, value);
    }
  }
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
__global__ void largest_of_rows_f32(const RowArguments a) { winner_of_rows<float, NanMaximum>(a); }
__global__ void largest_of_rows_f64(const RowArguments a) { winner_of_rows<double, NanMaximum>(a); }
__global__ void largest_of_rows_i64(const RowArguments a) {
  winner_of_rows<std::int64_t, NanMaximum>(a);
}
__global__ void smallest_of_rows_f32(const RowArguments a) { winner_of_rows<float, NanMinimum>(a); }
__global__ void smallest_of_rows_f64(const RowArguments a) {
  winner_of_rows<double, NanMinimum>(a);
}
__global__ void smallest_of_rows_i64(const RowArguments a) {
  winner_of_rows<std::int64_t, NanMinimum>(a);
}
__global__ void log_sum_of_rows_f32(const RowArguments a) { log_sum_of_rows<float>(a); }
__global__ void log_sum_of_rows_f64(const RowArguments a) { log_sum_of_rows<double>(a); }
__global__ void sums_along_rows_f64(const RowArguments a) { scan_rows(a, 0.0, Sum{}); }
__global__ void sums_along_rows_i64(const RowArguments a) { scan_rows(a, std::int64_t{0}, Sum{}); }
__global__ void products_along_rows_f64(const RowArguments a) { scan_rows(a, 1.0, Product{}); }
__global__ void products_along_rows_i64(const RowArguments a) {
  scan_rows(a, std::int64_t{1}, Product{});
}
__global__ void log_sums_along_rows_f64(const RowArguments a) {
  scan_rows(a, -static_cast<double>(INFINITY), LogSum{});
}
__global__ void recurrence_along_rows_f64(const RowArguments a) { recur_along_rows(a); }
__global__ void sum_squares_f32(const RowArguments a) { sum_rows<float, true>(a); }
__global__ void sum_squares_f64(const RowArguments a) { sum_rows<double, true>(a); }

}  // extern "C"
