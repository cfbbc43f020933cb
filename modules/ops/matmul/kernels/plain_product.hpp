#pragma once
// Which products need no workspace, told by a few comparisons.

#include <cstdint>

namespace tessera::kernels {

/// Whether a float product of contiguous matrices (each may be used transposed) needs no workspace
/// for certain: with such extents m, n and k, in any order, gemm.cpp computes it in one piece, and
/// oneDNN reads contiguous matrices as they are.
constexpr bool is_plain_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t few = 256;
  return m <= few && n <= few && k <= few;
}

}  // namespace tessera::kernels
