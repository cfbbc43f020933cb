#pragma once
// The codes of 8-bit state; their values are in kernels/quantization_map.hpp.

#include <cstdint>

namespace tessera::functions {

/// Elements of a row that share a scale.
inline constexpr std::int64_t quantized_block = 256;

/// Numbers up to it have the code of the smaller one of two neighbouring values.
constexpr float border_between(float smaller, float larger) { return (smaller + larger) / 2; }

}  // namespace tessera::functions
