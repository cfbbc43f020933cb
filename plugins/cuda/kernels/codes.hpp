// The structures of kernels for weights and activations in codes.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// A part of a weight in NF4 codes (tessera/nf4.hpp), as f32 [rows, columns]: codes [rows, columns
/// / 2], scales [rows, blocks]. Factors and the mean are the whole weight's, of which a row has
/// `row_blocks` blocks; the part's first one is number `first_block`.
struct Nf4Arguments {
  std::int64_t rows, columns;
  const std::uint8_t* codes;
  const std::int8_t* scales;
  const float* factors;
  const float* mean;
  float* y;
  std::int64_t codes_strides[2], scales_strides[2], y_strides[2];
  std::int64_t factors_stride;
  std::int64_t first_block, row_blocks;
};

/// The scales of 8-bit floating codes, of rows of elements that share one. If there is one row, its
/// scale is `given`, or follows from the magnitudes of its parts wherever it is needed.
struct ScaleArguments {
  std::int64_t rows;
  std::int64_t parts;      // of a row
  std::int64_t each;       // elements of a part but the last
  std::uint32_t* largest;  // of each part: the bits of the largest magnitude
  float* scales;           // of each row, if there are several
  const float* given;      // the only scale; null: it follows from the magnitudes
  float* factor;           // 1 / the only scale
  float most;              // the largest number of the codes' type
  bool powers_of_two;
};

/// 8-bit floating codes of x, with a scale for each row: `rows` are the elements that share one.
/// Arrays: x, codes, and 1 / scale of each row. Blocks have parts of rows.
struct QuantizeArguments {
  RowArguments rows;
  ScaleArguments scale;
};

/// The side of the tiles in which codes are turned.
inline constexpr int codes_tile = 64;
/// How many tiles a matrix has.
constexpr std::int64_t codes_tiles(std::int64_t rows, std::int64_t columns) {
  return ((rows + codes_tile - 1) / codes_tile) * ((columns + codes_tile - 1) / codes_tile);
}

/// Codes [rows, columns], multiples of 16, whose rows begin `leading` bytes after each other, as
/// turned [columns, rows], contiguous.
struct TurnArguments {
  const void* codes;
  void* turned;
  std::int64_t rows, columns, leading;
};

/// The same in pieces: a matrix of f32, bf16 or f16 whose rows are whole pieces of 16 codes, which
/// begin at multiples of 16 bytes; with turned codes, columns too. Steps are in elements, from row
/// to row.
struct QuantizePiecesArguments {
  ScaleArguments scale;
  std::int64_t rows, columns;
  const void* x;
  void* codes;   // may be absent where turned ones are made
  void* turned;  // [columns, rows]; may be absent
  std::int64_t x_step, codes_step, turned_step;
  std::int64_t row_scales, column_scales;  // 1: each has a scale, 0: they share one
  DType code_type;
};

/// The codes of x with turned ones: `rows` are lines along the last dim. Arrays: x, codes (may be
/// absent), turned codes.
struct QuantizeTilesArguments {
  RowArguments rows;
  ScaleArguments scale;
  std::int64_t row_scales, column_scales;  // 1: each has a scale, 0: they share one
};

}  // namespace tessera::cuda
