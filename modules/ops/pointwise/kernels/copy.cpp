#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "elementwise.hpp"
#include "pointwise/functions/comparisons.hpp"
#include "transpose.hpp"

namespace tessera::kernels {
namespace {

using elementwise::Access;
using elementwise::CollapsedDims;

/// x's and y's layout of the two innermost dims of a copy.
struct Plane {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t x_row;
  std::int64_t x_column;
  std::int64_t y_row;
  std::int64_t y_column;
  bool past_caches;  // the result is larger than these
};

template <class Word>
void copy_plane(const Plane& plane, const Word* x, Word* y) {
  if (plane.x_column == 1 && plane.y_column == 1) {
    for (std::int64_t row = 0; row < plane.rows; ++row) {
      std::memcpy(y + row * plane.y_row, x + row * plane.x_row,
                  static_cast<std::size_t>(plane.columns) * sizeof(Word));
    }
    return;
  }
  if (plane.x_row == 1 && plane.y_column == 1) {
    return transpose(plane.rows, plane.columns, x, plane.x_column, y, plane.y_row,
                     plane.past_caches);
  }
  // Tiles keep the lines of both sides in the first-level cache.
  constexpr std::int64_t kTile = 32;
  for (std::int64_t row = 0; row < plane.rows; row += kTile) {
    const std::int64_t row_end = std::min(row + kTile, plane.rows);
    for (std::int64_t column = 0; column < plane.columns; column += kTile) {
      const std::int64_t column_end = std::min(column + kTile, plane.columns);
      for (std::int64_t i = row; i < row_end; ++i) {
        for (std::int64_t j = column; j < column_end; ++j) {
          y[i * plane.y_row + j * plane.y_column] = x[i * plane.x_row + j * plane.x_column];
        }
      }
    }
  }
}

/// Puts the dims in the order of y's strides, so that it is written forwards, and then, as the dim
/// before the last, the one along which x is read forwards.
void order_dims(CollapsedDims<2>& shape) {
  const auto swap_dims = [&](std::size_t a, std::size_t b) {
    std::swap(shape.extents[a], shape.extents[b]);
    for (auto& strides : shape.strides) std::swap(strides[a], strides[b]);
  };
  const auto dims = static_cast<std::size_t>(shape.dims);
  for (std::size_t i = 0; i < dims; ++i) {
    for (std::size_t j = i + 1; j < dims; ++j) {
      if (shape.strides[1][i] < shape.strides[1][j]) swap_dims(i, j);
    }
  }
  if (dims < 3 || shape.strides[0][dims - 1] == 1) return;
  for (std::size_t i = 0; i + 2 < dims; ++i) {
    if (shape.strides[0][i] == 1) swap_dims(i, dims - 2);
  }
}

}  // namespace

void copy_strided(DType dtype, Extents extents, const void* x, Extents x_strides, void* y,
                  Extents y_strides) {
  CollapsedDims<2> shape = elementwise::collapse<2>(extents, {x_strides, y_strides});
  if (shape.count() == 0) return;
  order_dims(shape);
  const auto dims = static_cast<std::size_t>(shape.dims);
  const auto inner = [&](std::size_t from_end, const auto& values, std::int64_t missing) {
    return dims >= from_end ? values[dims - from_end] : missing;
  };
  const Plane plane{inner(2, shape.extents, 1),
                    inner(1, shape.extents, 1),
                    inner(2, shape.strides[0], 0),
                    inner(1, shape.strides[0], 1),
                    inner(2, shape.strides[1], 0),
                    inner(1, shape.strides[1], 1),
                    Access::contiguous(dtype, y).streams(shape.count())};
  const std::int64_t planes = shape.count() / (plane.rows * plane.columns);
  visit_width(dtype, [&](auto word) {
    using Word = decltype(word);
    const auto* from = static_cast<const Word*>(x);
    auto* to = static_cast<Word*>(y);
    if (planes == 1) {
      const std::int64_t grain =
          std::max<std::int64_t>(32, elementwise::kGrain / plane.columns / 32 * 32);
      parallel_for(0, plane.rows, grain, [&](std::int64_t begin, std::int64_t end) {
        Plane piece = plane;
        piece.rows = end - begin;
        copy_plane(piece, from + begin * plane.x_row, to + begin * plane.y_row);
      });
      return;
    }
    parallel_for(0, planes, 1 + elementwise::kGrain / (plane.rows * plane.columns),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t number = begin; number < end; ++number) {
                     std::int64_t rest = number;
                     std::int64_t x_at = 0;
                     std::int64_t y_at = 0;
                     for (std::size_t dim = dims - 2; dim-- > 0;) {
                       const std::int64_t index = rest % shape.extents[dim];
                       rest /= shape.extents[dim];
                       x_at += index * shape.strides[0][dim];
                       y_at += index * shape.strides[1][dim];
                     }
                     copy_plane(plane, from + x_at, to + y_at);
                   }
                 });
  });
}

namespace {

template <class Word>
void choose(std::int64_t count, const void* condition, const void* a, const void* b, void* y) {
  const auto* chosen = static_cast<const std::uint8_t*>(condition);
  const auto* left = static_cast<const Word*>(a);
  const auto* right = static_cast<const Word*>(b);
  auto* out = static_cast<Word*>(y);
#pragma clang loop vectorize(assume_safety)
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = functions::Where::value(chosen[i], left[i], right[i]);
}

void run_where(std::int64_t count, const Access& condition, const Access& a, const Access& b,
               const Access& y) {
  const DType compute = y.compute_type();
  elementwise::run<3>(count, {condition, a, b}, y,
                      [&](std::int64_t n, const auto& operands, void* result) {
                        visit_width(compute, [&](auto word) {
                          choose<decltype(word)>(n, operands[0], operands[1], operands[2], result);
                        });
                      });
}

}  // namespace

void where(DType dtype, std::int64_t count, const std::uint8_t* condition, const void* a,
           const void* b, void* y) {
  run_where(count, Access::contiguous(DType::boolean, condition), Access::contiguous(dtype, a),
            Access::contiguous(dtype, b), Access::contiguous(dtype, y));
}

void where_strided(DType dtype, Extents extents, const std::uint8_t* condition,
                   Extents condition_strides, const void* a, Extents a_strides, const void* b,
                   Extents b_strides, void* y, Extents y_strides) {
  const auto shape =
      elementwise::collapse<4>(extents, {condition_strides, a_strides, b_strides, y_strides});
  run_where(shape.count(), elementwise::access(DType::boolean, condition, shape, 0),
            elementwise::access(dtype, a, shape, 1), elementwise::access(dtype, b, shape, 2),
            elementwise::access(dtype, y, shape, 3));
}

void masked_fill(DType dtype, std::int64_t count, const void* x, const std::uint8_t* mask,
                 double value, void* y) {
  run_where(count, Access::contiguous(DType::boolean, mask), Access::repeated(dtype, value),
            Access::contiguous(dtype, x), Access::contiguous(dtype, y));
}

}  // namespace tessera::kernels
