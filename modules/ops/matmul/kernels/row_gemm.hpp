#pragma once
// Products whose rows do not depend on how many rows there are.

#include "gemm.hpp"

namespace tessera::kernels {

/// gemm() of floats without trans_a. Each element is computed from its row and column alone, by the
/// same sums whatever the extents m and n are: over k in 16 parts where B is transposed, else in
/// one. Takes no workspace.
void row_gemm(const Gemm& shape, const float* a, const float* b, float* c);

}  // namespace tessera::kernels
