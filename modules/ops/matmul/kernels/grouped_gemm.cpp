#include "grouped_gemm.hpp"

#include <algorithm>
#include <type_traits>

#include "gemm.hpp"
#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/parallel.hpp"

// The rows of a group are cut into tiles of a fixed height. So few different extents reach oneDNN,
// which prepares a primitive for each; the workspace follows from shapes although the counts are
// values; and a group's results do not depend on where its rows lie.

namespace tessera::kernels {
namespace {

constexpr std::int64_t kTile = 128;    // rows of A, or columns of A in an outer product
constexpr std::int64_t kSummed = 256;  // rows that one outer product sums over
constexpr std::int64_t kFewRows = 8;   // below it gemm() may take another way (gemm.cpp)

constexpr std::int64_t tiles_of(std::int64_t extent, std::int64_t tile) {
  return (extent + tile - 1) / tile;
}

/// Takes what the hungriest of gemm()'s calls with 1 to `most` rows takes: more rows never take
/// less, but for where it changes its way.
template <class T, class Out>
void take_for_rows(Workspace& w, Gemm shape, std::int64_t most) {
  for (const std::int64_t rows : {std::int64_t{1}, kFewRows - 1, kFewRows, kTile}) {
    const Workspace::Scope of_one(w);
    shape.m = std::min(rows, most);
    gemm<T, Out>(w, shape, nullptr, nullptr, nullptr);
  }
}

/// Calls body(workspace, task) for all tasks; `take` takes what the hungriest task needs. Few tasks
/// run one after the other, and each uses all threads.
template <class Take, class Body>
void each_task(Workspace& w, std::int64_t tasks, const Take& take, const Body& body) {
  const Workspace::Scope of_tasks(w);
  if (w.counts()) {
    {
      const Workspace::Scope of_one(w);
      take(w);
    }
    w.per_thread(take);
  } else if (tasks < threads()) {
    for (std::int64_t task = 0; task < tasks; ++task) {
      const Workspace::Scope of_one(w);
      body(w, task);
    }
  } else {
    const Workspace::Parts parts = w.per_thread(take);
    parallel_for(0, tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        Workspace part = parts.mine();
        body(part, task);
      }
    });
  }
}

/// Where the groups begin: the rows, and the tiles, before each of them; one entry more for the
/// end.
struct Starts {
  std::int64_t* rows;
  std::int64_t* tiles;

  Starts(Workspace& w, std::int64_t groups)
      : rows(w.take<std::int64_t>(groups + 1)), tiles(w.take<std::int64_t>(groups + 1)) {}

  void fill(std::int64_t groups, const std::int64_t* counts) const {
    rows[0] = tiles[0] = 0;
    for (std::int64_t g = 0; g < groups; ++g) {
      rows[g + 1] = rows[g] + counts[g];
      tiles[g + 1] = tiles[g] + tiles_of(counts[g], kTile);
    }
  }
};

/// Where the sum of an outer product is formed: in float for 16-bit types.
template <class T>
using Sum = std::conditional_t<sizeof(T) == 2, float, T>;

/// Columns [first, first + m) of A_g, transposed, times B_g, over `count` rows; into contiguous c.
template <class T>
void outer_block(Workspace& w, const GroupedOuter& shape, std::int64_t count, std::int64_t m,
                 const T* a, const T* b, Sum<T>* c) {
  if (count == 0 && !w.counts()) std::fill_n(c, m * shape.n, Sum<T>{});
  for (std::int64_t row = 0; row < count; row += kSummed) {
    const Workspace::Scope of_product(w);
    Gemm product;
    product.trans_a = true;
    product.m = m;
    product.n = shape.n;
    product.k = std::min(kSummed, count - row);
    product.lda = shape.lda;
    product.ldb = shape.ldb;
    product.ldc = shape.n;
    product.accumulate = row > 0;
    gemm(w, product, a + row * shape.lda, b + row * shape.ldb, c);
  }
}

constexpr DType narrow_type(const BFloat16*) { return DType::bf16; }
constexpr DType narrow_type(const Half*) { return DType::f16; }

}  // namespace

template <class T>
void grouped_gemm(Workspace& workspace, const GroupedGemm& shape, const std::int64_t* counts,
                  const T* a, const T* b, T* c) {
  const Workspace::Scope all(workspace);
  const Starts starts(workspace, shape.groups);
  Gemm tile;
  tile.trans_b = shape.trans_b;
  tile.n = shape.n;
  tile.k = shape.k;
  tile.lda = shape.lda;
  tile.ldb = shape.ldb;
  tile.ldc = shape.n;
  if (!workspace.counts()) starts.fill(shape.groups, counts);
  const std::int64_t tiles = workspace.counts() ? 0 : starts.tiles[shape.groups];
  const auto take = [&](Workspace& w) { take_for_rows<T, T>(w, tile, shape.rows); };
  each_task(workspace, tiles, take, [&](Workspace& w, std::int64_t task) {
    // The last group that begins at or before the tile: those without rows begin there too.
    const std::int64_t g =
        std::upper_bound(starts.tiles, starts.tiles + shape.groups + 1, task) - starts.tiles - 1;
    const std::int64_t row = starts.rows[g] + (task - starts.tiles[g]) * kTile;
    Gemm part = tile;
    part.m = std::min(kTile, starts.rows[g + 1] - row);
    gemm(w, part, a + row * shape.lda, b + g * shape.stride_b, c + row * shape.n);
  });
  if (workspace.counts()) return;
  const std::int64_t used = starts.rows[shape.groups];
  std::fill_n(c + used * shape.n, (shape.rows - used) * shape.n, T{});
}

template <class T>
void grouped_outer(Workspace& workspace, const GroupedOuter& shape, const std::int64_t* counts,
                   const T* a, const T* b, T* c) {
  const Workspace::Scope all(workspace);
  const Starts starts(workspace, shape.groups);
  if (!workspace.counts()) starts.fill(shape.groups, counts);
  const std::int64_t blocks = tiles_of(shape.m, kTile);
  const auto take = [&](Workspace& w) {
    for (const std::int64_t m : {std::min(kTile, shape.m), shape.m % kTile}) {
      for (const std::int64_t rows : {std::int64_t{1}, kSummed}) {
        const Workspace::Scope of_one(w);
        if constexpr (sizeof(T) == 2) w.take<float>(m * shape.n);
        outer_block<T>(w, shape, std::min(rows, shape.rows), m, nullptr, nullptr, nullptr);
      }
    }
  };
  each_task(workspace, shape.groups * blocks, take, [&](Workspace& w, std::int64_t task) {
    const std::int64_t g = task / blocks;
    const std::int64_t first = task % blocks * kTile;
    const std::int64_t m = std::min(kTile, shape.m - first);
    T* const into = c + (g * shape.m + first) * shape.n;
    const T* const from_a = a + starts.rows[g] * shape.lda + first;
    const T* const from_b = b + starts.rows[g] * shape.ldb;
    if constexpr (sizeof(T) == 2) {
      float* const sums = w.take<float>(m * shape.n);
      outer_block(w, shape, counts[g], m, from_a, from_b, sums);
      cast(DType::f32, narrow_type(into), m * shape.n, sums, into);
    } else {
      outer_block(w, shape, counts[g], m, from_a, from_b, into);
    }
  });
}

template void grouped_gemm(Workspace&, const GroupedGemm&, const std::int64_t*, const float*,
                           const float*, float*);
template void grouped_gemm(Workspace&, const GroupedGemm&, const std::int64_t*, const double*,
                           const double*, double*);
template void grouped_gemm(Workspace&, const GroupedGemm&, const std::int64_t*, const BFloat16*,
                           const BFloat16*, BFloat16*);
template void grouped_gemm(Workspace&, const GroupedGemm&, const std::int64_t*, const Half*,
                           const Half*, Half*);
template void grouped_outer(Workspace&, const GroupedOuter&, const std::int64_t*, const float*,
                            const float*, float*);
template void grouped_outer(Workspace&, const GroupedOuter&, const std::int64_t*, const double*,
                            const double*, double*);
template void grouped_outer(Workspace&, const GroupedOuter&, const std::int64_t*, const BFloat16*,
                            const BFloat16*, BFloat16*);
template void grouped_outer(Workspace&, const GroupedOuter&, const std::int64_t*, const Half*,
                            const Half*, Half*);

}  // namespace tessera::kernels
