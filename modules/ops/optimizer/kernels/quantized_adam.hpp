#pragma once
// Adam with 8-bit state: codes of 256 values, and a scale for each block of a row.

#include <array>
#include <cstdint>

#include "optimizer/functions/adam.hpp"
#include "optimizer/functions/quantization.hpp"
#include "quantization_map.hpp"
#include "update.hpp"

namespace tessera::kernels {

inline constexpr std::int64_t kQuantizedBlock = functions::quantized_block;

/// The map, made once.
const QuantizationMap& quantization_map(bool is_signed);

/// One moment: a code for each element, a scale of the parameter's type for each block of each row.
struct QuantizedState {
  std::uint8_t* codes;
  void* scales;
};

/// One step of rows of `row` elements each; see update() and Adam, without amsgrad. No array
/// aliases another. False where the types are not known: nothing was written then.
bool adam_8bit(const functions::Adam& rule, DType parameter_type, DType gradient_type,
               std::int64_t rows, std::int64_t row, void* parameter, const void* gradient,
               QuantizedState average, QuantizedState square);

}  // namespace tessera::kernels
