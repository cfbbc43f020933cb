#pragma once
// Matrix products of integers.

#include "matmul/kernels/gemm.hpp"

namespace tessera::kernels {

/// As gemm(), in T's own arithmetic: products and sums wrap modulo 2^bits, as PyTorch's. T:
/// std::int64_t, std::int32_t, std::uint8_t.
template <class T>
void integer_gemm(Workspace& workspace, const Gemm& shape, const T* a, const T* b, T* c);

extern template void integer_gemm(Workspace&, const Gemm&, const std::int64_t*, const std::int64_t*,
                                  std::int64_t*);
extern template void integer_gemm(Workspace&, const Gemm&, const std::int32_t*, const std::int32_t*,
                                  std::int32_t*);
extern template void integer_gemm(Workspace&, const Gemm&, const std::uint8_t*, const std::uint8_t*,
                                  std::uint8_t*);

}  // namespace tessera::kernels
