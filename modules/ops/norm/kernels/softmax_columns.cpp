// softmax and log_softmax over a dim that is not the last one: of columns. The columns of a tile
// are read from memory once; what is computed of them waits where its lines do not compete for
// places in the cache.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "norm.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd_math.hpp"
#include "shared/kernels/streaming.hpp"

namespace tessera::kernels {
namespace {

using simd::kLanes;
using simd::load_some;

constexpr std::int64_t kTile = 1 << 16;  // elements of a tile: in the second-level cache
constexpr std::int64_t kLargest = 1
                                  << 19;  // elements of a tile of long columns, in the third-level
constexpr std::int64_t kWidest = 256;     // columns of a tile
constexpr std::int64_t kAdjacent = 128;   // columns that are worth a larger tile
constexpr std::int64_t kAtOnce = 4;       // rows, so that sums are loaded and stored less often
constexpr std::int64_t kSummed = 32;      // rows that are summed on their own
// Rows further on that are brought into the cache: as they are pages apart, the machine does not do
// so by itself.
constexpr std::int64_t kAhead = 16;
constexpr std::int64_t kGrain = 1 << 13;  // elements

/// Columns of a tile, whole vectors: by the shape alone.
template <class T>
std::int64_t tile_width(std::int64_t n, std::int64_t inner) {
  const std::int64_t worth = std::max(kTile / n, std::min(kAdjacent, kLargest / n));
  const std::int64_t wanted = std::min({kWidest, worth, inner + kLanes<T> - 1});
  return std::max(kLanes<T>, wanted / kLanes<T> * kLanes<T>);
}

/// Calls body(first element, columns, memory) for the tiles of columns of [outer, n, inner];
/// `buffers`: how many tiles the memory holds.
template <class T, class Body>
void for_each_tile(Workspace& workspace, std::int64_t outer, std::int64_t n, std::int64_t inner,
                   std::int64_t buffers, Body body) {
  if (outer * n * inner == 0) return;
  const std::int64_t wide = tile_width<T>(n, inner);
  const std::int64_t tiles = (inner + wide - 1) / wide;
  const auto take = [&](Workspace& part) { return part.take<Compute<T>>(buffers * n * wide); };
  const Workspace::Parts parts = workspace.per_thread(take);
  if (workspace.counts()) return;
  parallel_for(0, outer * tiles, 1 + kGrain / (n * wide),
               [&](std::int64_t begin, std::int64_t end) {
                 Workspace part = parts.mine();
                 Compute<T>* const memory = take(part);
                 for (std::int64_t tile = begin; tile < end; ++tile) {
                   const std::int64_t column = tile % tiles * wide;
                   body(tile / tiles * n * inner + column, std::min(wide, inner - column), memory);
                 }
               });
}

/// Sums, and other numbers, of the columns of a tile.
template <class T>
struct Columns {
  static constexpr std::int64_t kVectors = kWidest / kLanes<T>;
  simd::Vector<T> vectors[kVectors];

  [[gnu::always_inline]] void fill(Compute<T> value, std::int64_t width) {
    for (std::int64_t i = 0; i * kLanes<T> < width; ++i) vectors[i] = simd::Vector<T>{} + value;
  }
  [[gnu::always_inline]] simd::Vector<T>& operator[](std::int64_t vector) {
    return vectors[vector];
  }
};

/// Calls use(vector, its place in row 0, columns from there on) for the vectors of a row.
template <class T, class Use>
[[gnu::always_inline]] inline void each_vector(std::int64_t width, Use use) {
  for (std::int64_t at = 0; at < width; at += kLanes<T>) use(at / kLanes<T>, at, width - at);
}

/// sums = the sums over the rows of term(row, vector, place, columns): rows in groups, and these in
/// order.
template <class T, class Term>
[[gnu::always_inline]] inline void sum_rows(std::int64_t n, std::int64_t width, Columns<T>& sums,
                                            Term term) {
  sums.fill(0, width);
  for (std::int64_t first = 0; first < n; first += kSummed) {
    Columns<T> group;
    group.fill(0, width);
    for (std::int64_t row = first; row < std::min(n, first + kSummed); ++row) {
      each_vector<T>(width, [&](std::int64_t vector, std::int64_t at, std::int64_t rest)
                                __attribute__((always_inline)) {
                                  group[vector] += term(row, vector, at, rest);
                                });
    }
    each_vector<T>(width, [&](std::int64_t vector, std::int64_t, std::int64_t)
                              __attribute__((always_inline)) { sums[vector] += group[vector]; });
  }
}

/// Maxima and sums of the columns of a tile while it is read.
template <class T>
struct ColumnStatistics {
  Columns<T> references;  // near the largest elements
  Columns<T> tops;        // the largest elements
  Columns<T> sums;        // of the exponentials of the distances to the references
};

/// Largest elements may be this far above the references: exponentials do not overflow, and what
/// matters of the sums does not underflow.
constexpr float kReach = 40;

/// Reads rows [first, last) of a tile, which then holds the exponentials (logarithm: the elements);
/// adds them to `sums`.
template <std::int64_t kRows, class T>
[[gnu::always_inline]] inline void read_rows(bool logarithm, std::int64_t first, std::int64_t last,
                                             std::int64_t inner, std::int64_t width,
                                             std::int64_t padded, const T* x, Compute<T>* tile,
                                             ColumnStatistics<T>& columns, Columns<T>& sums) {
  for (std::int64_t row = first; row + kRows <= last; row += kRows) {
    each_vector<T>(width, [&](std::int64_t vector, std::int64_t at, std::int64_t rest)
                              __attribute__((always_inline)) {
                                const auto reference = columns.references[vector];
                                auto top = columns.tops[vector];
                                auto sum = sums[vector];
#pragma unroll
                                for (std::int64_t r = row; r < row + kRows; ++r) {
                                  __builtin_prefetch(x + (r + kAhead) * inner + at);
                                  const auto value = load_some(x + r * inner + at, rest);
                                  const auto power = simd::exp_nonpositive(value - reference);
                                  top = simd::maximum(value, top);
                                  sum += power;
                                  simd::store(tile + r * padded + at, logarithm ? value : power);
                                }
                                columns.tops[vector] = top;
                                sums[vector] = sum;
                              });
  }
}

/// Computes one vector of columns again, with the largest elements as references.
template <class T>
[[gnu::always_inline]] inline void read_again(bool logarithm, std::int64_t n, std::int64_t inner,
                                              std::int64_t padded, std::int64_t vector,
                                              std::int64_t rest, const T* x, Compute<T>* tile,
                                              ColumnStatistics<T>& columns) {
  const auto top = columns.tops[vector];
  simd::Vector<T> sum = {};
  for (std::int64_t row = 0; row < n; ++row) {
    const auto power = simd::exp_nonpositive(load_some(x + row * inner, rest) - top);
    sum += power;
    if (!logarithm) simd::store(tile + row * padded, power);
  }
  columns.references[vector] = top;
  columns.sums[vector] = sum;
}

/// One tile; `tile` has a row of whole vectors for each row of x.
template <class T>
[[gnu::always_inline]] inline void forward(bool logarithm, std::int64_t n, std::int64_t inner,
                                           std::int64_t width, const T* x, Compute<T>* tile, T* y,
                                           const simd::Stores& store) {
  using C = Compute<T>;
  using V = simd::Vector<T>;
  constexpr C kInfinity = std::numeric_limits<C>::infinity();
  const std::int64_t padded = (width + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
  ColumnStatistics<T> columns;
  each_vector<T>(width, [&](std::int64_t vector, std::int64_t at, std::int64_t rest)
                            __attribute__((always_inline)) {
                              const V row = load_some(x + at, rest);
                              columns.references[vector] = simd::abs(row) < kInfinity ? row : V{};
                              columns.tops[vector] = V{} - kInfinity;
                              columns.sums[vector] = V{};
                            });
  for (std::int64_t first = 0; first < n; first += kSummed) {
    Columns<T> group;
    group.fill(0, width);
    const std::int64_t last = std::min(n, first + kSummed);
    const std::int64_t whole = first + (last - first) / kAtOnce * kAtOnce;
    read_rows<kAtOnce>(logarithm, first, whole, inner, width, padded, x, tile, columns, group);
    read_rows<1>(logarithm, whole, last, inner, width, padded, x, tile, columns, group);
    each_vector<T>(width,
                   [&](std::int64_t vector, std::int64_t, std::int64_t)
                       __attribute__((always_inline)) { columns.sums[vector] += group[vector]; });
  }
  each_vector<T>(width, [&](std::int64_t vector, std::int64_t at,
                            std::int64_t rest) __attribute__((always_inline)) {
    const V distance = columns.tops[vector] - columns.references[vector];
    const auto near = simd::abs(distance) <= C{kReach};
    if (__builtin_reduce_and(near) == 0)
      read_again(logarithm, n, inner, padded, vector, rest, x + at, tile + at, columns);
  });
  for (std::int64_t column = 0; column < width; ++column) {
    const std::int64_t vector = column / kLanes<T>;
    const std::int64_t lane = column % kLanes<T>;
    const C sum = columns.sums[vector][lane];
    // The logarithm of the sum of distances to the largest element.
    columns.sums[vector][lane] =
        logarithm ? std::log(sum) - (columns.tops[vector][lane] - columns.references[vector][lane])
                  : C{1} / sum;
  }
  for (std::int64_t row = 0; row < n; ++row) {
    each_vector<T>(width, [&](std::int64_t vector, std::int64_t at,
                              std::int64_t rest) __attribute__((always_inline)) {
      const V value = simd::load(tile + row * padded + at);
      store(y + row * inner + at, rest,
            logarithm ? value - columns.tops[vector] - columns.sums[vector]
                      : value * columns.sums[vector]);
    });
  }
}

template <class T>
[[gnu::always_inline]] inline void backward(bool logarithm, std::int64_t n, std::int64_t inner,
                                            std::int64_t width, const T* dy, const T* y, T* dx) {
  Columns<T> sums;
  sum_rows<T>(n, width, sums,
              [&](std::int64_t row, std::int64_t, std::int64_t at, std::int64_t rest)
                  __attribute__((always_inline)) {
                    __builtin_prefetch(dy + (row + kAhead) * inner + at);
                    if (!logarithm) __builtin_prefetch(y + (row + kAhead) * inner + at);
                    const auto gradient = load_some(dy + row * inner + at, rest);
                    if (logarithm) return gradient;
                    return gradient * load_some(y + row * inner + at, rest);
                  });
  for (std::int64_t row = 0; row < n; ++row) {
    each_vector<T>(width, [&](std::int64_t vector, std::int64_t at,
                              std::int64_t rest) __attribute__((always_inline)) {
      const auto gradient = load_some(dy + row * inner + at, rest);
      const auto result = load_some(y + row * inner + at, rest);
      const auto value = logarithm ? gradient - simd::exp(result) * sums[vector]
                                   : result * (gradient - sums[vector]);
      simd::store_some(dx + row * inner + at, rest, value);
    });
  }
}

}  // namespace

template <class T>
void softmax_columns_forward(Workspace& workspace, bool logarithm, std::int64_t outer,
                             std::int64_t n, std::int64_t inner, const T* x, T* y) {
  const bool streamed = simd::is_streamed(y, inner, outer * n * inner);
  for_each_tile<T>(workspace, outer, n, inner, 1,
                   [&](std::int64_t first, std::int64_t width, Compute<T>* tile) {
                     const simd::Stores store(streamed);
                     simd::dispatch([&](auto) __attribute__((always_inline)) {
                       forward(logarithm, n, inner, width, x + first, tile, y + first, store);
                     });
                   });
}

template <class T>
void softmax_columns_backward(bool logarithm, std::int64_t outer, std::int64_t n,
                              std::int64_t inner, const T* dy, const T* y, T* dx) {
  Workspace none(nullptr, 0);
  for_each_tile<T>(none, outer, n, inner, 0,
                   [&](std::int64_t first, std::int64_t width, Compute<T>*) {
                     simd::dispatch([&](auto) __attribute__((always_inline)) {
                       backward(logarithm, n, inner, width, dy + first, y + first, dx + first);
                     });
                   });
}

template decltype(softmax_columns_forward<float>) softmax_columns_forward<float>;
template decltype(softmax_columns_forward<double>) softmax_columns_forward<double>;
template decltype(softmax_columns_forward<BFloat16>) softmax_columns_forward<BFloat16>;
template decltype(softmax_columns_forward<Half>) softmax_columns_forward<Half>;
template decltype(softmax_columns_backward<float>) softmax_columns_backward<float>;
template decltype(softmax_columns_backward<double>) softmax_columns_backward<double>;
template decltype(softmax_columns_backward<BFloat16>) softmax_columns_backward<BFloat16>;
template decltype(softmax_columns_backward<Half>) softmax_columns_backward<Half>;

}  // namespace tessera::kernels
