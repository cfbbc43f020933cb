#pragma once
// Adam with 8-bit state: codes of 256 values, and a scale for each block of a row.

#include <array>
#include <cstdint>

#include "optimizer/functions/adam.hpp"
#include "update.hpp"

namespace tessera::kernels {

inline constexpr std::int64_t kQuantizedBlock = 256;

/// The values of the codes, in rising order, from -0.993 (or 0) to 1: seven decades with twice as
/// many values in each as in the one below. Source: bitsandbytes' create_dynamic_map.
const std::array<float, 256>& quantization_map(bool is_signed);

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
