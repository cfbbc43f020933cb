#pragma once
// Rotary position embedding in the halves form (transformers' Llama): i pairs with i + head_dim
// / 2.

#include <cstdint>

#include "attention/functions/rotary.hpp"
#include "shared/kernels/types.hpp"

namespace tessera::kernels {

using functions::RotaryFrequencies;

/// Strides of x: [batch, time, heads, head_dim], last dim contiguous. y is contiguous.
struct RotaryShape {
  std::int64_t batch = 0;
  std::int64_t time = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;  // even
  std::int64_t stride_batch = 0;
  std::int64_t stride_time = 0;
  std::int64_t stride_head = 0;
  std::int64_t position_offset = 0;  // time t stands at position t + position_offset, at least 0
  /// The positions themselves, instead of the offset: of batch b and time t at positions[b *
  /// stride_positions + t], from 0 to below positions_end.
  const std::int64_t* positions = nullptr;
  std::int64_t stride_positions = 0;
  std::int64_t positions_end = 0;
  RotaryFrequencies frequencies = {};
  bool inverse = false;  // turns back: the gradient of the rotation
};

/// With h = head_dim / 2, angle = position * frequency(i), i < h:
///   y[i] = x[i] cos - x[i + h] sin,  y[i + h] = x[i + h] cos + x[i] sin
/// (sin negated when inverse). Angles, sines and cosines are computed in double and kept in a table
/// for each (frequencies, head_dim), which grows with the positions asked for. y may be x when x is
/// contiguous. Source: Su et al., RoFormer (2021). Instantiated for float, double, BFloat16, Half.
template <class T>
void rotary(const RotaryShape& shape, const T* x, T* y);

}  // namespace tessera::kernels
