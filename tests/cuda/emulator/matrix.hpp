// Matrices that are spread over the lanes of a warp in fragments, as PTX's documentation defines
// them (ldmatrix, mma.m16n8k16).
#pragma once
#include <cstdint>
#include <span>

namespace emulator {

enum class MatrixOperation : std::uint8_t { load, load_transposed, multiply_bf16, multiply_f16 };

/// Of one lane. A load has a row of 16 bytes in `in`; a product the words of a (4), b (2) and, as
/// bits, of the sums so far (4).
struct LaneWords {
  std::uint32_t in[10] = {};
  std::uint32_t out[4] = {};
};

/// Fills `out` of all lanes of a warp.
void compute_matrices(MatrixOperation operation, std::span<LaneWords* const, 32> lanes);

}  // namespace emulator
