#pragma once
// NF4: weights as 4-bit codes of 16 levels, with a scale for each block of 64 elements of a row
// (QLoRA, https://arxiv.org/abs/2305.14314). The scales are 8-bit codes too, with a factor for each
// block of 256 of them. Formulas and the order of codes are torchao's. For any compiler.

#include <cstdint>

namespace tessera::kernels::nf4 {

inline constexpr std::int64_t block_size = 64;         // elements of a row with one scale
inline constexpr std::int64_t scale_block_size = 256;  // scales with one factor

/// Quantiles of a normal distribution, scaled to [-1, 1].
inline constexpr float levels[16] = {
    -1.0F,      -0.6961928F, -0.5250731F, -0.3949175F, -0.2844414F, -0.1847734F, -0.0910500F, 0.0F,
    0.0795803F, 0.1609302F,  0.2461123F,  0.3379152F,  0.4407098F,  0.5626170F,  0.7229568F,  1.0F};

/// The scale of a block: its code, the factor of the code's block, the mean of all scales.
constexpr float scale_of(std::int8_t code, float factor, float mean) {
  return static_cast<float>(code) / factor + mean;
}

}  // namespace tessera::kernels::nf4
