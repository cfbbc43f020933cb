// Weights in NF4 codes; the numbers of the format are in a header that devices' kernels include
// too.
module;
#include <tessera/nf4.hpp>
export module tessera.nf4:nf4_codes;

import tessera.base;

export namespace tessera::nf4 {

/// Constants of the format: see tessera/nf4.hpp.
using kernels::nf4::block_size;
using kernels::nf4::levels;
using kernels::nf4::scale_block_size;

/// A part of a packed weight: some of its rows, and all or some columns of these.
struct Part {
  const std::uint8_t* codes;  // two in a byte, the first element in the upper half
  const std::int8_t* scales;
  const float* factors;  // of the whole weight
  float mean;            // of the scales of the whole weight
  std::int64_t rows;
  std::int64_t row_blocks;        // of the part
  std::int64_t first_block;       // the place of its first block among those of the whole weight
  std::int64_t whole_row_blocks;  // of the whole weight
};

/// max |x| of each block of a weight, row by row.
void block_scales(std::span<const float> weight, std::span<float> scales);
/// Two codes in a byte, the first element in the upper half: the levels nearest to x / scale.
void encode(std::span<const float> weight, std::span<const float> scales,
            std::span<std::uint8_t> codes);
/// Of the scales of a whole weight: their mean, the factors, and the 8-bit scales.
struct PackedScales {
  float mean = 0;
  std::span<float> factors;
  std::span<std::int8_t> scales;
};
void pack_scales(std::span<const float> scales, PackedScales& packed);

/// Writes level[code] * (scale / factor + mean) for each element, row by row.
void decode(const Part& part, float* values);

}  // namespace tessera::nf4
