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

/// 8-bit floating codes of x, with a scale for each row: `rows` are the elements that share one.
/// Arrays: x, codes, and 1 / scale of each row. Blocks have parts of rows.
struct QuantizeArguments {
  RowArguments rows;
  std::int64_t parts;      // of a row
  std::uint32_t* largest;  // of each part: the bits of the largest magnitude
  float* scales;           // of each row
  const float* given;      // the only scale; null: it follows from the magnitudes
  float most;              // the largest number of the codes' type
  bool powers_of_two;
};

}  // namespace tessera::cuda
