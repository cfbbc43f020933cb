// NF4: weights as 4-bit codes of 16 levels, with a scale for each block of 64 elements of a row
// (QLoRA, https://arxiv.org/abs/2305.14314). The scales are 8-bit codes too, with a factor for each
// block of 256 of them. Formulas and the order of codes are torchao's.
export module tessera.nn:nf4;

import tessera.base;

export namespace tessera::nn::nf4 {

inline constexpr std::int64_t block_size = 64;         // elements of a row with one scale
inline constexpr std::int64_t scale_block_size = 256;  // scales with one factor

/// Quantiles of a normal distribution, scaled to [-1, 1].
inline constexpr std::array<float, 16> levels = {
    -1.0F,      -0.6961928F, -0.5250731F, -0.3949175F, -0.2844414F, -0.1847734F, -0.0910500F, 0.0F,
    0.0795803F, 0.1609302F,  0.2461123F,  0.3379152F,  0.4407098F,  0.5626170F,  0.7229568F,  1.0F};

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

/// Writes level[code] * (scale / factor + mean) for each element, row by row.
void decode(const Part& part, float* values);

}  // namespace tessera::nn::nf4
