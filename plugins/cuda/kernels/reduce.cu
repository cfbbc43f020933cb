// Sums over dims, and sums, products and recurrences up to each element. By rows, where a row is
// near together in memory, else by columns. Where there are few, each is cut into parts, whose
// results another launch joins; the order of a sum is that of the shapes.
#include "kernels/reduce.hpp"
#include "kernels/row_pieces.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

// How a row becomes one number: `start` from its first element, a fold of each, and a join.
struct SumReduction : Sum {
  template <class C>
  static __device__ C start(C) {
    return {};
  }
  template <class C>
  static __device__ C fold(C sum, C x) {
    return sum + x;
  }
};
struct NormReduction : SumReduction {
  template <class C>
  static __device__ C fold(C sum, C x) {
    return sum + x * x;
  }
};
/// The element that wins against all others.
template <class Winner>
struct ExtremeReduction : Winner {
  template <class C>
  static __device__ C start(C first) {
    return first;
  }
  template <class C>
  static __device__ C fold(C best, C x) {
    return Winner{}(x, best);
  }
};

/// Calls body(row, begin, end, number) for the parts of rows that this block has in turn. integers:
/// the elements of a part, the parts of a row.
template <class Body>
__device__ void each_part(const RowArguments& a, Body body) {
  const std::int64_t each = a.integers[0], parts = a.integers[1];
  for (std::int64_t work = blockIdx.x; work < a.rows * parts; work += gridDim.x) {
    const std::int64_t begin = work % parts * each;
    body(work / parts, begin, begin + each < a.length ? begin + each : a.length, work);
  }
}

/// The result of a row that is one part, divided by numbers[0]; else of a part, in the workspace.
template <class C>
__device__ void set_of_part(const RowArguments& a, std::int64_t number, C value) {
  if (threadIdx.x != 0) return;
  if (a.integers[1] == 1) {
    Row<C>(a, 1, number).set(0, a.numbers[0] == 1 ? value : value / static_cast<C>(a.numbers[0]));
  } else {
    static_cast<C*>(a.arrays[1].data)[number] = value;
  }
}

/// Arrays: x, y, for any type and strides.
template <class C, class Way>
__device__ void reduce_rows(const RowArguments& a) {
  each_part(a, [&](std::int64_t row, std::int64_t begin, std::int64_t end, std::int64_t number) {
    const Row<C> x(a, 0, row);
    const C start = Way::start(begin < end ? x.get(begin) : C{});
    C result = start;
    each_piece(begin, end, a.piece, threadIdx.x, blockDim.x,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t i = first; i < last; ++i) result = Way::fold(result, x.get(i));
               });
    set_of_part(a, number, join_block(result, start, Way{}));
  });
}

/// Calls body(element) for the elements of a part that this thread has.
template <class T, class Body>
__device__ void each_element(const T* x, std::int64_t begin, std::int64_t end, bool aligned,
                             Body body) {
  each_loaded_piece(
      x, begin, end, aligned,
      [&](const Piece<T>& piece, std::int64_t) {
#pragma unroll
        for (int k = 0; k < Piece<T>::elements; ++k) body(piece.get(k));
      },
      [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) body(convert<float>(x[i]));
      });
}

/// The same, with the same bits, where rows of T begin at multiples of 16 bytes.
template <class T, class Way>
__device__ void reduce_pieces(const RowArguments& a) {
  each_part(a, [&](std::int64_t row, std::int64_t begin, std::int64_t end, std::int64_t number) {
    const T* const x = row_of<const T>(a, 0, row);
    const float start = Way::start(begin < end ? convert<float>(x[begin]) : 0.0F);
    float result = start;
    const auto fold = [&](float value) { result = Way::fold(result, value); };
    each_element(x, begin, end, true, fold);
    set_of_part(a, number, join_block(result, start, Way{}));
  });
}

/// The sum of the squares of a part of a tensor in f64, by the block.
template <class T>
__device__ double sum_of_squares(const TensorInList& x, std::int64_t begin, std::int64_t end) {
  const T* const data = static_cast<const T*>(x.data);
  double sum = 0;
  const auto add = [&](double value) { sum = NormReduction::fold(sum, value); };
  if constexpr (!std::is_same_v<T, double>) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
    each_element(data, begin, end, aligned, add);
    return sum_block(sum);
  }
  each_piece(begin, end, 16 / sizeof(T), threadIdx.x, blockDim.x,
             [&](std::int64_t first, std::int64_t last) {
               for (std::int64_t i = first; i < last; ++i) add(convert<double>(data[i]));
             });
  return sum_block(sum);
}

/// Where the parts of the tensor after this one begin.
__device__ std::int32_t end_of_parts(const ListArguments& a, int which) {
  return which + 1 < a.count ? a.tensors[which + 1].first_part : a.parts;
}

/// Of tensors of T; a block has a part of one.
template <class T>
__device__ void sum_squares_of_list(const ListArguments& a) {
  const auto part = static_cast<std::int32_t>(blockIdx.x);
  int which = 0;
  for (int count = a.count; count > 1;) {  // the last tensor that does not begin after the part
    const int half = count / 2;
    const bool later = a.tensors[which + half].first_part <= part;
    which += later ? half : 0;
    count = later ? count - half : half;
  }
  const TensorInList& x = a.tensors[which];
  const std::int64_t begin = (part - x.first_part) * x.each;
  const std::int64_t end = begin + x.each < x.count ? begin + x.each : x.count;
  const double sum = sum_of_squares<T>(x, begin, end);
  if (threadIdx.x != 0) return;
  const bool is_whole = end_of_parts(a, which) - x.first_part == 1;
  (is_whole ? a.results[x.result] : a.partials[part]) = sum;
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

/// Calls body(first row, last row, first column, number of the group) for the groups of rows and
/// `columns` columns that this block has in turn. integers: the rows of a group, the groups.
template <class Body>
__device__ void each_group(const RowArguments& a, std::int64_t columns, Body body) {
  const std::int64_t each = a.integers[0], groups = a.integers[1];
  const std::int64_t across = (a.length + columns - 1) / columns;
  for (std::int64_t work = blockIdx.x; work < across * groups; work += gridDim.x) {
    const std::int64_t group = work / across, begin = group * each;
    body(begin, begin + each < a.rows ? begin + each : a.rows, work % across * columns, group);
  }
}

/// The sum of a column over all rows, divided by numbers[0]; else over a group, in the workspace.
template <class C>
__device__ void set_of_group(const RowArguments& a, std::int64_t group, std::int64_t column,
                             C value) {
  if (a.integers[1] == 1) {
    Row<C>(a, 1, 0).set(column, a.numbers[0] == 1 ? value : value / static_cast<C>(a.numbers[0]));
  } else {
    static_cast<C*>(a.arrays[1].data)[group * a.length + column] = value;
  }
}

/// Threads that share the rows of a group.
constexpr unsigned rows_at_once = 32;

/// Arrays: x, y. The sums over the rows, for any type and strides; a thread has a column.
template <class C>
__device__ void sum_columns(const RowArguments& a) {
  __shared__ C partial[rows_at_once][lanes];
  const unsigned lane = threadIdx.x % lanes, line = threadIdx.x / lanes;
  each_group(a, lanes,
             [&](std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t group) {
               const std::int64_t column = first + lane;
               C sum = {};
               if (column < a.length) {
                 for (std::int64_t row = begin + line; row < end; row += rows_at_once) {
                   sum += Row<C>(a, 0, row).get(column);
                 }
               }
               partial[line][lane] = sum;
               __syncthreads();
               if (line == 0 && column < a.length) {
                 for (unsigned other = 1; other < rows_at_once; ++other)
                   sum += partial[other][lane];
                 set_of_group(a, group, column, sum);
               }
               __syncthreads();
             });
}

/// The same, with the same bits, where rows of T are pieces of 16 bytes; a thread has a piece.
template <class T>
__device__ void sum_column_pieces(const RowArguments& a) {
  constexpr unsigned width = Piece<T>::elements, pieces = 8, columns = pieces * width;
  __shared__ float partial[rows_at_once][columns];
  const unsigned lane = threadIdx.x % pieces, line = threadIdx.x / pieces;
  const T* const x = static_cast<const T*>(a.arrays[0].data);
  const std::int64_t stride = a.arrays[0].kept[0];
  each_group(
      a, columns,
      [&](std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t group) {
        const std::int64_t column = first + lane * width;
        float sums[width] = {};
        const auto add = [&](const Piece<T>& piece) {
#pragma unroll
          for (int k = 0; k < static_cast<int>(width); ++k) sums[k] += piece.get(k);
        };
        if (column < a.length) {
          std::int64_t row = begin + line;
          for (; row + (pieces_at_once - 1) * rows_at_once < end;
               row += pieces_at_once * rows_at_once) {
            Piece<T> all[pieces_at_once];
#pragma unroll
            for (int n = 0; n < pieces_at_once; ++n) {
              all[n] = load_piece<T>(x + (row + n * std::int64_t{rows_at_once}) * stride + column);
            }
#pragma unroll
            for (int n = 0; n < pieces_at_once; ++n) add(all[n]);
          }
#pragma unroll 1
          for (; row < end; row += rows_at_once) add(load_piece<T>(x + row * stride + column));
        }
#pragma unroll
        for (int k = 0; k < static_cast<int>(width); ++k) partial[line][lane * width + k] = sums[k];
        __syncthreads();
        const unsigned own = threadIdx.x;
        if (own < columns && first + own < a.length) {
          float sum = partial[0][own];
          for (unsigned other = 1; other < rows_at_once; ++other) sum += partial[other][own];
          set_of_group(a, group, first + own, sum);
        }
        __syncthreads();
      });
}

}  // namespace

extern "C" {

__global__ void sum_rows_f32(const RowArguments a) { reduce_rows<float, SumReduction>(a); }
__global__ void sum_rows_f64(const RowArguments a) { reduce_rows<double, SumReduction>(a); }
__global__ void sum_rows_i64(const RowArguments a) { reduce_rows<std::int64_t, SumReduction>(a); }
__global__ void sum_squares_f64(const RowArguments a) { reduce_rows<double, NormReduction>(a); }
// As many threads as a block can have.
__global__ void __launch_bounds__(1024) sum_columns_f32(const RowArguments a) {
  sum_columns<float>(a);
}
__global__ void __launch_bounds__(1024) sum_columns_f64(const RowArguments a) {
  sum_columns<double>(a);
}
__global__ void __launch_bounds__(1024) sum_columns_i64(const RowArguments a) {
  sum_columns<std::int64_t>(a);
}
__global__ void largest_rows_f32(const RowArguments a) {
  reduce_rows<float, ExtremeReduction<NanMaximum>>(a);
}
__global__ void largest_rows_f64(const RowArguments a) {
  reduce_rows<double, ExtremeReduction<NanMaximum>>(a);
}
__global__ void largest_rows_i64(const RowArguments a) {
  reduce_rows<std::int64_t, ExtremeReduction<NanMaximum>>(a);
}
__global__ void smallest_rows_f32(const RowArguments a) {
  reduce_rows<float, ExtremeReduction<NanMinimum>>(a);
}
__global__ void smallest_rows_f64(const RowArguments a) {
  reduce_rows<double, ExtremeReduction<NanMinimum>>(a);
}
__global__ void smallest_rows_i64(const RowArguments a) {
  reduce_rows<std::int64_t, ExtremeReduction<NanMinimum>>(a);
}

/// A block has a tensor.
__global__ void join_sums_of_list(const __grid_constant__ ListArguments a) {
  const int which = static_cast<int>(blockIdx.x);
  const std::int32_t begin = a.tensors[which].first_part, end = end_of_parts(a, which);
  if (end - begin == 1) return;
  double sum = 0;
  for (std::int32_t i = begin + static_cast<std::int32_t>(threadIdx.x); i < end;
       i += static_cast<std::int32_t>(blockDim.x)) {
    sum += a.partials[i];
  }
  sum = sum_block(sum);
  if (threadIdx.x == 0) a.results[a.tensors[which].result] = sum;
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

}  // extern "C"

// By the name of an element type.
#define PIECES(T, type)                                                       \
  extern "C" __global__ void sum_pieces_##type(const RowArguments a) {        \
    reduce_pieces<T, SumReduction>(a);                                        \
  }                                                                           \
  extern "C" __global__ void largest_pieces_##type(const RowArguments a) {    \
    reduce_pieces<T, ExtremeReduction<NanMaximum>>(a);                        \
  }                                                                           \
  extern "C" __global__ void smallest_pieces_##type(const RowArguments a) {   \
    reduce_pieces<T, ExtremeReduction<NanMinimum>>(a);                        \
  }                                                                           \
  extern "C" __global__ void sum_column_pieces_##type(const RowArguments a) { \
    sum_column_pieces<T>(a);                                                  \
  }

PIECES(float, f32)
PIECES(BFloat16, bf16)
PIECES(Half, f16)

#define LISTS(T, type)                                                                             \
  extern "C" __global__ void sum_squares_of_list_##type(const __grid_constant__ ListArguments a) { \
    sum_squares_of_list<T>(a);                                                                     \
  }

LISTS(float, f32)
LISTS(double, f64)
LISTS(BFloat16, bf16)
LISTS(Half, f16)
