#pragma once
// A product whose bits do not depend on how much of it is computed at once.

#include "matmul/kernels/gemm.hpp"

namespace tessera::kernels {

/// Into how many equal blocks the extents of a product are cut. Each divides its extent.
struct GemmBlocks {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::int64_t sum = 1;  // along k
};

/// C = op(A) op(B), each block of it by a product of its own for each block of k; these are added
/// along the binary tree of reduce_ranks. One batch entry, without `accumulate`.
/// T: float or double.
template <class T>
void gemm_in_blocks(Workspace& workspace, const Gemm& shape, const GemmBlocks& blocks, const T* a,
                    const T* b, T* c);

extern template void gemm_in_blocks(Workspace&, const Gemm&, const GemmBlocks&, const float*,
                                    const float*, float*);
extern template void gemm_in_blocks(Workspace&, const Gemm&, const GemmBlocks&, const double*,
                                    const double*, double*);

}  // namespace tessera::kernels
