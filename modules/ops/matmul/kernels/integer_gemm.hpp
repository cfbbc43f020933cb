#pragma once
// Matrix products of integers.

#include <type_traits>

#include "matmul/kernels/gemm.hpp"

namespace tessera::kernels {

/// As gemm(), in T's own arithmetic: products and sums wrap modulo 2^bits, as PyTorch's. For
/// all integers that operators compute with.
template <class T>
void integer_gemm(Workspace& workspace, const Gemm& shape, const T* a, const T* b, T* c);

template <class T>
inline constexpr bool takes_integer_gemm = std::is_integral_v<T> && !std::is_same_v<T, bool>;

}  // namespace tessera::kernels
