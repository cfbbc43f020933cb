// argmax and argmin.

// Columns of some types stay scalar. Stands before the headers, as the warning is placed where the
// loop is inlined.
#pragma clang diagnostic ignored "-Wpass-failed"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <type_traits>

#include "reduce/kernels/reduce.hpp"
#include "reduce/kernels/reducers.hpp"
#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

using namespace reducers;  // NOLINT(google-build-using-namespace)

/// An extreme element and where it is first.
template <class T>
struct IndexedExtreme {
  Plain<T> value;
  std::int64_t index;
};

/// The first of `size` elements that is `value`, one of them.
template <class T>
std::int64_t place_of(Plain<T> value, const T* x, std::int64_t size) {
  constexpr std::int64_t kGroup = 64;
  const auto is_it = [value](Plain<T> element) {
    return (element == value) | ((element != element) & (value != value));
  };
  std::int64_t i = 0;
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    for (; i + kGroup <= size; i += kGroup) {
      int found = 0;
      for (std::int64_t j = 0; j < kGroup; ++j) found |= static_cast<int>(is_it(plain(x[i + j])));
      if (found != 0) return;
    }
  });
  while (!is_it(plain(x[i]))) ++i;
  return i;
}

/// Extremes of adjacent elements: the extreme of each part of the cache's size, then its place if
/// it is new.
template <class R, class T>
IndexedExtreme<T> find_in_run(const T* x, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kPart = 1 << 12;
  IndexedExtreme<T> best{plain(x[first]), first};
  for (; first < last; first += kPart) {
    const std::int64_t size = std::min(kPart, last - first);
    const Plain<T> value = reduce_run<R>(x + first, size);
    if (!R::exceeds(value, best.value)) continue;
    best = {value, first + place_of(value, x + first, size)};
  }
  return best;
}

template <class R, class T>
void find_in_rows(Workspace& workspace, const ReduceShape& shape, const T* x, std::int64_t* y) {
  const std::int64_t blocks = (shape.reduced + kBlock - 1) / kBlock;
  auto* const found = workspace.take<IndexedExtreme<T>>(blocks == 1 ? 0 : shape.outer * blocks);
  if (workspace.counts()) return;
  parallel_for(0, shape.outer * blocks, 1 + kBlock / 4 / (shape.reduced + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t first = task % blocks * kBlock;
                   const IndexedExtreme<T> best =
                       find_in_run<R>(x + task / blocks * shape.reduced, first,
                                      std::min(shape.reduced, first + kBlock));
                   if (blocks == 1) {
                     y[task] = best.index;
                   } else {
                     found[task] = best;
                   }
                 }
               });
  if (blocks == 1) return;
  for (std::int64_t o = 0; o < shape.outer; ++o) {
    IndexedExtreme<T> best = found[o * blocks];
    for (std::int64_t block = 1; block < blocks; ++block) {
      const IndexedExtreme<T>& other = found[o * blocks + block];
      if (R::exceeds(other.value, best.value)) best = other;
    }
    y[o] = best.index;
  }
}

/// An index as wide as the elements, so that both are in vectors of one length.
template <class T>
using Row = std::conditional_t<sizeof(Plain<T>) == 8, std::int64_t, std::int32_t>;

/// The extremes of `width` columns, and their first rows. Loads and stores without a condition: the
/// compiler makes vectors.
template <class R, class T>
[[gnu::always_inline]] inline void extremes_of_columns(const T* x, std::int64_t rows,
                                                       std::int64_t width, std::int64_t stride,
                                                       Plain<T>* best, Row<T>* index) {
  constexpr std::int64_t kAtOnce = 4;  // rows: what is found is loaded and stored less often
  constexpr std::int64_t kStrip = 64;
  const auto join = [&]<std::int64_t kCount>(std::int64_t first, std::int64_t begin,
                                             std::int64_t end,
                                             std::integral_constant<std::int64_t, kCount>)
                        __attribute__((always_inline)) {
                          const T* const from = x + first * stride;
#pragma clang loop vectorize(assume_safety)
                          for (std::int64_t i = begin; i < end; ++i) {
                            Plain<T> value = best[i];
                            Row<T> place = index[i];
#pragma unroll
                            for (std::int64_t k = 0; k < kCount; ++k) {
                              const Plain<T> joined = R::join(value, plain(from[k * stride + i]));
                              const bool better = (joined != value) & (value == value);
                              value = joined;
                              place = better ? static_cast<Row<T>>(first + k) : place;
                            }
                            best[i] = value;
                            index[i] = place;
                          }
                        };
  for (std::int64_t i = 0; i < width; ++i) {
    best[i] = plain(x[i]);
    index[i] = 0;
  }
  std::int64_t row = 1;
  for (; row + kAtOnce <= rows; row += kAtOnce) {
    constexpr std::integral_constant<std::int64_t, kAtOnce> kCount;
    std::int64_t i = 0;
    for (; i + kStrip <= width; i += kStrip) {
      // The next rows: where rows are pages apart, the machine does not fetch them by itself.
      for (std::int64_t k = kAtOnce; k < 2 * kAtOnce; ++k) {
        const T* const next = x + (row + k) * stride + i;
        for (std::int64_t at = 0; at < kStrip; at += 64 / static_cast<std::int64_t>(sizeof(T)))
          __builtin_prefetch(next + at);
      }
      join(row, i, i + kStrip, kCount);
    }
    join(row, i, width, kCount);
  }
  for (; row < rows; ++row) join(row, 0, width, std::integral_constant<std::int64_t, 1>{});
}

template <class R, class T>
void find_in_columns(Workspace& workspace, const ReduceShape& shape, const T* x, std::int64_t* y) {
  constexpr std::int64_t kWidth = 1024;
  constexpr std::int64_t kRows = 1 << 9;
  const std::int64_t pieces = (shape.inner + kWidth - 1) / kWidth;
  const std::int64_t blocks = (shape.reduced + kRows - 1) / kRows;
  const std::int64_t lines = shape.outer * shape.inner;
  auto* const found = workspace.take<IndexedExtreme<T>>(blocks == 1 ? 0 : blocks * lines);
  if (workspace.counts()) return;
  const std::int64_t work = std::min(kRows, shape.reduced) * std::min(kWidth, shape.inner);
  parallel_for(
      0, shape.outer * pieces * blocks, 1 + kBlock / 4 / (work + 1),
      [&](std::int64_t begin, std::int64_t end) {
        std::array<Plain<T>, kWidth> best;
        std::array<Row<T>, kWidth> index;
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t block = task % blocks;
          const std::int64_t outer = task / blocks / pieces;
          const std::int64_t first = task / blocks % pieces * kWidth;
          const std::int64_t width = std::min(kWidth, shape.inner - first);
          const std::int64_t rows = std::min(kRows, shape.reduced - block * kRows);
          const T* from = x + (outer * shape.reduced + block * kRows) * shape.inner + first;
          simd::dispatch([&](auto) __attribute__((always_inline)) {
            extremes_of_columns<R>(from, rows, width, shape.inner, best.data(), index.data());
          });
          for (std::int64_t i = 0; i < width; ++i) {
            const std::int64_t at = outer * shape.inner + first + i;
            const std::int64_t r = block * kRows + index.data()[i];
            if (blocks == 1) {
              y[at] = r;
            } else {
              found[block * lines + at] = {best.data()[i], r};
            }
          }
        }
      });
  if (blocks == 1) return;
  parallel_for(0, lines, 1 + kBlock / 4 / blocks, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      IndexedExtreme<T> best = found[at];
      for (std::int64_t block = 1; block < blocks; ++block) {
        const IndexedExtreme<T>& other = found[block * lines + at];
        if (R::exceeds(other.value, best.value)) best = other;
      }
      y[at] = best.index;
    }
  });
}

/// R: Maximum or Minimum.
template <template <class> class R>
void arg_reduce(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
                std::int64_t* y) {
  if (shape.outer * shape.inner == 0) return;
  visit(dtype, [&]<class T>(T) {
    const auto* from = static_cast<const T*>(x);
    shape.inner == 1 ? find_in_rows<R<T>>(workspace, shape, from, y)
                     : find_in_columns<R<T>>(workspace, shape, from, y);
  });
}

}  // namespace

void argmax(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
            std::int64_t* y) {
  require_elements("argmax: the dim has no elements", shape);
  arg_reduce<Maximum>(workspace, dtype, shape, x, y);
}

void argmin(Workspace& workspace, DType dtype, const ReduceShape& shape, const void* x,
            std::int64_t* y) {
  require_elements("argmin: the dim has no elements", shape);
  arg_reduce<Minimum>(workspace, dtype, shape, x, y);
}

}  // namespace tessera::kernels
