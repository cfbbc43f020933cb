#pragma once
// The gated activation of Llama's feed-forward layer. T: float, double, BFloat16, Half.

#include <cstdint>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// y = silu(gate) * up on rows x n; the operands' rows may lie apart (strides in elements), so the
/// two halves of one product need no copy. y is contiguous; it may be gate or up if that is
/// contiguous. silu(x) = x / (1 + exp(-x)). Source: Shazeer, GLU Variants Improve Transformer
/// (2020).
template <class T>
void swiglu_forward(std::int64_t rows, std::int64_t n, const T* gate, std::int64_t gate_stride,
                    const T* up, std::int64_t up_stride, T* y);

/// dgate = dy up s (1 + gate (1 - s)), dup = dy gate s, s = sigmoid(gate). dy is contiguous; dgate
/// has gate's row stride and may be gate, dup has up's and may be up.
template <class T>
void swiglu_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* gate,
                     std::int64_t gate_stride, const T* up, std::int64_t up_stride, T* dgate,
                     T* dup);

}  // namespace tessera::kernels
