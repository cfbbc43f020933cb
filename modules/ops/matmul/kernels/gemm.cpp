#include "gemm.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <tessera/row_products.hpp>
#include <type_traits>

#include "onednn.hpp"
#include "pointwise/kernels/pointwise.hpp"
#include "row_gemm.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/simd.hpp"
#include "shared/kernels/tile.hpp"

// A row's bits and the number of rows: the double kernel here gives each element by one chain over
// k, so they do not depend on m. oneDNN chooses a blocking by the extents and promises nothing; on
// AVX-512 float rows had the same bits for m = 1, 2, 4, ... 256 at all extents tried
// (tests/gemm.cpp, tag [measure]). bfloat16: see kFewRows.

namespace tessera::kernels {
namespace {

template <class Out>
void zero_rows(const Gemm& shape, Out* c) {
  for (std::int64_t entry = 0; entry < shape.batch; ++entry) {
    for (std::int64_t row = 0; row < shape.m; ++row) {
      std::fill_n(c + entry * shape.stride_c + row * shape.ldc, shape.n, Out{});
    }
  }
}

/// One batch entry in double: op(B) is copied in panels of full vectors, C's too.
void double_product(Workspace& workspace, const Gemm& shape, const double* a, const double* b,
                    double* c) {
  constexpr std::int64_t kPanel = 32;
  struct Arrays {
    Arrays(Workspace& w, const Gemm& shape)
        : right(w.take<double>(shape.k * kPanel)), result(w.take<double>(shape.m * kPanel)) {}
    double* right;
    double* result;
  };
  const Workspace::Parts parts =
      workspace.per_thread([&](Workspace& part) { Arrays(part, shape); });
  if (workspace.counts()) return;
  const std::int64_t panels = (shape.n + kPanel - 1) / kPanel;
  const std::int64_t a_row = shape.trans_a ? 1 : shape.lda;
  const std::int64_t a_k = shape.trans_a ? shape.lda : 1;
  const std::int64_t b_k = shape.trans_b ? 1 : shape.ldb;
  const std::int64_t b_column = shape.trans_b ? shape.ldb : 1;
  parallel_for(0, panels, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace part = parts.mine();
    const Arrays arrays(part, shape);
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t first = panel * kPanel;
      const std::int64_t width = std::min(kPanel, shape.n - first);
      for (std::int64_t p = 0; p < shape.k; ++p) {
        double* row = arrays.right + p * kPanel;
        for (std::int64_t j = 0; j < width; ++j) row[j] = b[p * b_k + (first + j) * b_column];
        std::fill(row + width, row + kPanel, 0.0);
      }
      simd::dispatch([&](auto isa) __attribute__((always_inline)) {
        tile::product<false>(
            isa, tile::Product<double>{shape.m, kPanel, shape.k, a, a_row, a_k, arrays.right,
                                       kPanel, arrays.result, kPanel});
      });
      for (std::int64_t i = 0; i < shape.m; ++i) {
        for (std::int64_t j = 0; j < width; ++j) {
          double& target = c[i * shape.ldc + first + j];
          target = arrays.result[i * kPanel + j] + (shape.accumulate ? target : 0.0);
        }
      }
    }
  });
}

/// A stored matrix [rows, columns] with a row stride, made contiguous and float.
template <class T>
void widen(std::int64_t rows, std::int64_t columns, const T* x, std::int64_t stride,
           float* result) {
  constexpr DType kType = std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16;
  if (stride == columns) return cast(kType, DType::f32, rows * columns, x, result);
  for (std::int64_t row = 0; row < rows; ++row) {
    cast(kType, DType::f32, columns, x + row * stride, result + row * columns);
  }
}

/// The other way round: contiguous floats into a stored matrix.
template <class T>
void narrow(std::int64_t rows, std::int64_t columns, const float* x, T* result,
            std::int64_t stride) {
  constexpr DType kType = std::is_same_v<T, BFloat16> ? DType::bf16 : DType::f16;
  if (stride == columns) return cast(DType::f32, kType, rows * columns, x, result);
  for (std::int64_t row = 0; row < rows; ++row) {
    cast(DType::f32, kType, columns, x + row * columns, result + row * stride);
  }
}

/// Few rows read B once: widening it would cost more than the product. (So below this number of
/// rows the bits of a bfloat16 row can differ from those above it.)
constexpr std::int64_t kFewRows = 8;

/// One product of 16-bit operands by way of float copies: for Half, and machines without
/// bfloat16.
template <class T, class Out>
void widened_product(Workspace& workspace, const Gemm& shape, const T* a, const T* b, Out* c) {
  const std::int64_t a_rows = shape.trans_a ? shape.k : shape.m;
  const std::int64_t a_columns = shape.trans_a ? shape.m : shape.k;
  const std::int64_t b_rows = shape.trans_b ? shape.n : shape.k;
  const std::int64_t b_columns = shape.trans_b ? shape.k : shape.n;
  const Workspace::Scope copies(workspace);
  float* wide_a = workspace.take<float>(a_rows * a_columns);
  float* wide_b = workspace.take<float>(b_rows * b_columns);
  const bool computes = !workspace.counts();
  if (computes) {
    widen(a_rows, a_columns, a, shape.lda, wide_a);
    widen(b_rows, b_columns, b, shape.ldb, wide_b);
  }
  Gemm wide = shape;
  wide.lda = a_columns;
  wide.ldb = b_columns;
  if constexpr (std::is_same_v<Out, float>) {
    gemm(workspace, wide, wide_a, wide_b, c);
  } else {
    float* wide_c = workspace.take<float>(shape.m * shape.n);
    if (shape.accumulate && computes) widen(shape.m, shape.n, c, shape.ldc, wide_c);
    wide.ldc = shape.n;
    gemm(workspace, wide, wide_a, wide_b, wide_c);
    if (computes) narrow(shape.m, shape.n, wide_c, c, shape.ldc);
  }
}

/// A batch over one B whose rows of A and C follow each other is one product.
Gemm folded(Gemm shape) {
  if (shape.batch > 1 && shape.stride_b == 0 && !shape.trans_a &&
      shape.stride_a == shape.m * shape.lda && shape.stride_c == shape.m * shape.ldc) {
    shape.m *= shape.batch;
    shape.batch = 1;
  }
  if (shape.batch == 1) shape.stride_a = shape.stride_b = shape.stride_c = 0;
  return shape;
}

/// A part of a product: some entries of the batch, of each some rows and columns of the result.
struct Pieces {
  std::int64_t entries = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t down = 1;    // pieces along the rows
  std::int64_t across = 1;  // and along the columns
  std::int64_t count = 1;
};

constexpr std::int64_t pieces_of(std::int64_t extent, std::int64_t piece) {
  return (extent + piece - 1) / piece;
}

/// How threads share a product: in pieces of about 0.1 ms (2^24 multiply-adds, or 2 MiB) that are
/// not so narrow that they are slower (measured: 64 columns cost a tenth). The extents alone
/// determine the pieces, as an element's bits may depend on the product that it is computed in, but
/// not on the number of threads.
Pieces cut(const Gemm& shape, std::int64_t element_bytes) {
  constexpr std::int64_t kNarrow = 128;
  constexpr std::int64_t kMultiple = 16;  // lanes
  const std::int64_t work = shape.batch * shape.m * shape.n * shape.k;
  const std::int64_t bytes =
      shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n) * element_bytes;
  const std::int64_t wanted = std::max(work >> 24, bytes >> 21);
  Pieces p{shape.batch, shape.m, shape.n, 1, 1, 1};
  if (wanted <= 1) return p;
  p.entries = pieces_of(shape.batch, wanted);
  const std::int64_t groups = pieces_of(shape.batch, p.entries);
  if (p.entries == 1) {
    while (groups * p.down * p.across < wanted && std::max(p.rows, p.columns) >= 2 * kNarrow) {
      std::int64_t& extent = p.rows >= p.columns ? p.rows : p.columns;
      extent = pieces_of(extent, 2 * kMultiple) * kMultiple;
      p.down = pieces_of(shape.m, p.rows);
      p.across = pieces_of(shape.n, p.columns);
    }
  }
  p.count = groups * p.down * p.across;
  return p;
}

/// Does the library compute it, rather than a kernel of this file (which uses threads itself)?
template <class T>
bool library_computes(const Gemm& shape) {
  if constexpr (std::is_same_v<T, float>) return true;
  return std::is_same_v<T, BFloat16> && (shape.m < kFewRows || onednn::native_bfloat16());
}

template <class T, class Out>
bool library(Workspace& workspace, const Gemm& shape, const T* a, const T* b, Out* c) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, BFloat16>) {
    return library_computes<T>(shape) && onednn::product(workspace, shape, a, b, c);
  } else {
    return false;
  }
}

/// The entries of a batch one by one, which use the same memory.
template <class T, class Out>
[[gnu::noinline]] void compute_entries(Workspace& workspace, const Gemm& shape, const T* a,
                                       const T* b, Out* c) {
  Gemm single = shape;
  single.batch = 1;
  single.stride_a = single.stride_b = single.stride_c = 0;
  const std::int64_t entries = workspace.counts() ? 1 : shape.batch;
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    const Workspace::Scope of_entry(workspace);
    const T* entry_a = a + entry * shape.stride_a;
    const T* entry_b = b + entry * shape.stride_b;
    Out* entry_c = c + entry * shape.stride_c;
    if (shape.batch > 1 && library(workspace, single, entry_a, entry_b, entry_c)) continue;
    if constexpr (std::is_same_v<T, double>) {
      double_product(workspace, single, entry_a, entry_b, entry_c);
    } else if constexpr (!std::is_same_v<T, float>) {
      widened_product(workspace, single, entry_a, entry_b, entry_c);
    } else {
      throw std::runtime_error("gemm: oneDNN has no kernel for this float product");
    }
  }
}

/// A product, or a piece of one.
template <class T, class Out>
void compute(Workspace& workspace, const Gemm& shape, const T* a, const T* b, Out* c) {
  if (!library(workspace, shape, a, b, c)) compute_entries(workspace, shape, a, b, c);
}

/// The piece of a product that begins at this entry, row and column.
Gemm piece_at(const Gemm& shape, const Pieces& p, std::int64_t entry, std::int64_t row,
              std::int64_t column) {
  Gemm part = shape;
  part.m = std::min(p.rows, shape.m - row);
  part.n = std::min(p.columns, shape.n - column);
  part.batch = std::min(p.entries, shape.batch - entry);
  if (part.batch == 1) part.stride_a = part.stride_b = part.stride_c = 0;
  return part;
}

/// Takes what the hungriest piece needs: along each dim all pieces are equal but the last one.
template <class T, class Out>
void take_for_pieces(Workspace& workspace, const Gemm& shape, const Pieces& p) {
  const std::int64_t groups = pieces_of(shape.batch, p.entries);
  for (const std::int64_t group : {std::int64_t{0}, groups - 1}) {
    for (const std::int64_t down : {std::int64_t{0}, p.down - 1}) {
      for (const std::int64_t across : {std::int64_t{0}, p.across - 1}) {
        const Gemm part = piece_at(shape, p, group * p.entries, down * p.rows, across * p.columns);
        compute<T, Out>(workspace, part, nullptr, nullptr, nullptr);
      }
    }
  }
}

template <class T, class Out>
[[gnu::noinline]] void compute_pieces(Workspace& workspace, const Gemm& shape, const Pieces& p,
                                      const T* a, const T* b, Out* c) {
  const Workspace::Scope of_pieces(workspace);
  const Workspace::Parts parts =
      workspace.per_thread([&](Workspace& part) { take_for_pieces<T, Out>(part, shape, p); });
  if (workspace.counts()) return;
  parallel_for(0, p.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t column = piece % p.across * p.columns;
      const std::int64_t row = piece / p.across % p.down * p.rows;
      const std::int64_t entry = piece / p.across / p.down * p.entries;
      Workspace part = parts.mine();
      compute(part, piece_at(shape, p, entry, row, column),
              a + entry * shape.stride_a + row * (shape.trans_a ? 1 : shape.lda),
              b + entry * shape.stride_b + column * (shape.trans_b ? shape.ldb : 1),
              c + entry * shape.stride_c + row * shape.ldc + column);
    }
  });
}

}  // namespace

template <class T, class Out>
void gemm(Workspace& workspace, const Gemm& given, const T* a, const T* b, Out* c) {
  const Gemm shape = folded(given);
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0) return;
  if (shape.k == 0) {
    if (!shape.accumulate && !workspace.counts()) zero_rows(shape, c);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if ((shape.rows_alike || RowProducts::active()) && !shape.trans_a) {
      if (!workspace.counts()) row_gemm(shape, a, b, c);
      return;
    }
  }
  const Pieces p = library_computes<T>(shape) ? cut(shape, sizeof(T)) : Pieces{};
  if (p.count <= 1) return compute(workspace, shape, a, b, c);
  compute_pieces(workspace, shape, p, a, b, c);
}

template void gemm(Workspace&, const Gemm&, const float*, const float*, float*);
template void gemm(Workspace&, const Gemm&, const double*, const double*, double*);
template void gemm(Workspace&, const Gemm&, const BFloat16*, const BFloat16*, BFloat16*);
template void gemm(Workspace&, const Gemm&, const BFloat16*, const BFloat16*, float*);
template void gemm(Workspace&, const Gemm&, const Half*, const Half*, Half*);
template void gemm(Workspace&, const Gemm&, const Half*, const Half*, float*);

}  // namespace tessera::kernels
