#pragma once
// Which products need no workspace, told by a few comparisons.

#include <cstdint>

namespace tessera::kernels {

/// Whether a float product of contiguous matrices (each may be used transposed) with so many
/// elements, with a sum of `k` terms for each result, needs no workspace for certain: gemm.cpp
/// computes it in one piece, and oneDNN reads contiguous matrices as they are.
constexpr bool is_plain_product(std::int64_t a, std::int64_t b, std::int64_t results,
                                std::int64_t k) {
  constexpr std::int64_t few = 1 << 18;
  return a <= few && b <= few && results <= few && results * k <= (1 << 24);
}

}  // namespace tessera::kernels
