#include "grouped_gemm.hpp"

#include <algorithm>
#include <tessera/row_products.hpp>

#include "gemm.hpp"
#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/parallel.hpp"

// The rows of a group are cut into tiles of a fixed height, the last of which gets rows of zeros up
// to a multiple of a few. So few different extents reach oneDNN, which prepares a primitive for
// each; the workspace follows from shapes although the counts are values; and a group's results do
// not depend on where its rows lie.

namespace tessera::kernels {
namespace {

constexpr std::int64_t kTile = 128;    // rows of A, or columns of A in an outer product
constexpr std::int64_t kSummed = 256;  // rows that one outer product sums over
constexpr std::int64_t kStep = 16;     // rows are padded to a multiple of it

constexpr std::int64_t tiles_of(std::int64_t extent, std::int64_t tile) {
  return (extent + tile - 1) / tile;
}
constexpr std::int64_t padded(std::int64_t rows) { return tiles_of(rows, kStep) * kStep; }

/// A copy of x's rows, and rows of zeros up to padded(rows).
template <class T>
const T* padded_rows(Workspace& w, const T* x, std::int64_t stride, std::int64_t rows,
                     std::int64_t columns) {
  T* const copy = w.take<T>(padded(rows) * columns);
  if (w.counts()) return copy;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(x + row * stride, columns, copy + row * columns);
  }
  std::fill_n(copy + rows * columns, (padded(rows) - rows) * columns, T{});
  return copy;
}

/// A product whose m is any number of rows up to a tile's, into contiguous c.
template <class T>
void tile_product(Workspace& w, Gemm product, const T* a, const T* b, T* c) {
  const std::int64_t rows = product.m;
  product.m = padded(rows);
  if (product.m == rows) return gemm(w, product, a, b, c);
  a = padded_rows(w, a, product.lda, rows, product.k);
  product.lda = product.k;
  T* const into = w.take<T>(product.m * product.n);
  gemm(w, product, a, b, into);
  if (!w.counts()) std::copy_n(into, rows * product.n, c);
}

/// Takes what the hungriest tile of at most `most` rows takes.
template <class T>
void take_for_rows(Workspace& w, Gemm shape, std::int64_t most) {
  most = std::min(most, kTile);
  for (const std::int64_t rows : {std::int64_t{1}, most - 1, most}) {
    const Workspace::Scope of_one(w);
    shape.m = std::max<std::int64_t>(rows, 0);
    tile_product<T>(w, shape, nullptr, nullptr, nullptr);
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
struct GroupStarts {
  std::int64_t* rows;
  std::int64_t* tiles;

  GroupStarts(Workspace& w, std::int64_t groups)
      : rows(w.take<std::int64_t>(groups + 1)), tiles(w.take<std::int64_t>(groups + 1)) {}

  void fill(std::int64_t groups, const std::int64_t* counts) const {
    rows[0] = tiles[0] = 0;
    for (std::int64_t g = 0; g < groups; ++g) {
      rows[g + 1] = rows[g] + counts[g];
      tiles[g + 1] = tiles[g] + tiles_of(counts[g], kTile);
    }
  }
};

/// Columns [first, first + m) of A_g, transposed, times B_g, over `count` rows; into contiguous c.
template <class T>
void outer_block(Workspace& w, const GroupedOuter& shape, std::int64_t count, std::int64_t m,
                 const T* a, const T* b, Summed<T>* c) {
  if (count == 0 && !w.counts()) std::fill_n(c, m * shape.n, Summed<T>{});
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
    const T* from_a = a + row * shape.lda;
    const T* from_b = b + row * shape.ldb;
    if (const std::int64_t rows = product.k; padded(rows) != rows) {
      from_a = padded_rows(w, from_a, shape.lda, rows, m);
      from_b = padded_rows(w, from_b, shape.ldb, rows, shape.n);
      product.k = padded(rows);
      product.lda = m;
      product.ldb = shape.n;
    }
    gemm(w, product, from_a, from_b, c);
  }
}

constexpr DType narrow_type(const BFloat16*) { return DType::bf16; }
constexpr DType narrow_type(const Half*) { return DType::f16; }

}  // namespace

template <class T>
void grouped_gemm(Workspace& workspace, const GroupedGemm& shape, const std::int64_t* counts,
                  const T* a, const T* b, T* c) {
  const Workspace::Scope all(workspace);
  const GroupStarts starts(workspace, shape.groups);
  Gemm tile;
  tile.trans_b = shape.trans_b;
  tile.n = shape.n;
  tile.k = shape.k;
  tile.lda = shape.lda;
  tile.ldb = shape.ldb;
  tile.ldc = shape.n;
  tile.rows_alike = RowProducts::active();  // of this thread, for those that help it
  if (!workspace.counts()) starts.fill(shape.groups, counts);
  const std::int64_t tiles = workspace.counts() ? 0 : starts.tiles[shape.groups];
  const auto take = [&](Workspace& w) { take_for_rows<T>(w, tile, shape.rows); };
  each_task(workspace, tiles, take, [&](Workspace& w, std::int64_t task) {
    // The last group that begins at or before the tile: those without rows begin there too.
    const std::int64_t g =
        std::upper_bound(starts.tiles, starts.tiles + shape.groups + 1, task) - starts.tiles - 1;
    const std::int64_t row = starts.rows[g] + (task - starts.tiles[g]) * kTile;
    Gemm part = tile;
    part.m = std::min(kTile, starts.rows[g + 1] - row);
    tile_product(w, part, a + row * shape.lda, b + g * shape.stride_b, c + row * shape.n);
  });
  if (workspace.counts()) return;
  const std::int64_t used = starts.rows[shape.groups];
  std::fill_n(c + used * shape.n, (shape.rows - used) * shape.n, T{});
}

template <class T>
void grouped_outer(Workspace& workspace, const GroupedOuter& shape, const std::int64_t* counts,
                   const T* a, const T* b, T* c) {
  const Workspace::Scope all(workspace);
  const GroupStarts starts(workspace, shape.groups);
  if (!workspace.counts()) starts.fill(shape.groups, counts);
  const std::int64_t blocks = tiles_of(shape.m, kTile);
  const auto take = [&](Workspace& w) {
    for (const std::int64_t m : {std::min(kTile, shape.m), shape.m % kTile}) {
      const std::int64_t most = std::min(kSummed, shape.rows);
      for (const std::int64_t rows : {std::int64_t{1}, most - 1, most}) {
        const Workspace::Scope of_one(w);
        if constexpr (sizeof(T) == 2) w.take<float>(m * shape.n);
        outer_block<T>(w, shape, rows, m, nullptr, nullptr, nullptr);
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
