#pragma once
// Matrix products.

#include <cstdint>
#include <tessera/half.hpp>

#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

/// Extents and layout of a batch of products C = op(A) op(B) + beta C, all row-major.
/// op(A) is m x k: A is stored m x k with row stride lda, or k x m when trans_a. Likewise op(B), k
/// x n. A batch stride of 0 uses the same matrix for the whole batch. Extents may be 0 (k = 0 gives
/// beta C).
struct Gemm {
  bool trans_a = false;
  bool trans_b = false;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t batch = 1;
  std::int64_t lda = 0;
  std::int64_t stride_a = 0;
  std::int64_t ldb = 0;
  std::int64_t stride_b = 0;
  std::int64_t ldc = 0;
  std::int64_t stride_c = 0;
  bool accumulate = false;  // beta: false 0 (C is not read), true 1
  bool rows_alike = false;  // the bits of a row do not depend on m; also with RowProducts
};

/// C = op(A) op(B) (+ C). C aliases neither A nor B.
/// T/Out: float/float, double/double, BFloat16/BFloat16, BFloat16/float, Half/Half, Half/float;
/// 16-bit inputs are accumulated in float and rounded once. Rows of floats whose bits may not
/// depend on how many rows there are: row_gemm.hpp; see gemm.cpp on others. Takes copies of what
/// the library that computes it cannot read. Throws std::runtime_error where that library fails.
template <class T, class Out>
void gemm(Workspace& workspace, const Gemm& shape, const T* a, const T* b, Out* c);

extern template void gemm(Workspace&, const Gemm&, const float*, const float*, float*);
extern template void gemm(Workspace&, const Gemm&, const double*, const double*, double*);
extern template void gemm(Workspace&, const Gemm&, const BFloat16*, const BFloat16*, BFloat16*);
extern template void gemm(Workspace&, const Gemm&, const BFloat16*, const BFloat16*, float*);
extern template void gemm(Workspace&, const Gemm&, const Half*, const Half*, Half*);
extern template void gemm(Workspace&, const Gemm&, const Half*, const Half*, float*);

}  // namespace tessera::kernels
