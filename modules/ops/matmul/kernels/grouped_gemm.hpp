#pragma once
// Products of groups of rows, each with a matrix of its own. How many rows a group has is a value,
// known when the kernel runs.

#include <cstdint>
#include <tessera/half.hpp>

#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

/// C = A op(B_g) for the rows of each group g: A is rows x k, C rows x n and contiguous, op(B_g) is
/// k x n. Row-major; B_g is stored n x k when trans_b, and begins at g * stride_b.
struct GroupedGemm {
  std::int64_t groups = 0;
  std::int64_t rows = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool trans_b = false;
  std::int64_t lda = 0;
  std::int64_t ldb = 0;
  std::int64_t stride_b = 0;
};

/// C_g = A_g^T B_g, m x n and contiguous, over the rows of each group g: A is rows x m, B rows x n.
struct GroupedOuter {
  std::int64_t groups = 0;
  std::int64_t rows = 0;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t lda = 0;
  std::int64_t ldb = 0;
};

// Group g has counts[g] >= 0 rows, after those of the groups before; the counts sum to at most
// `rows`. T: float, double, BFloat16, Half; 16-bit operands are summed in float and rounded once.
// Results do not depend on the number of threads, nor on the rows of other groups.

/// Rows after the last group's become 0.
template <class T>
void grouped_gemm(Workspace& workspace, const GroupedGemm& shape, const std::int64_t* counts,
                  const T* a, const T* b, T* c);

/// A group without rows gets 0.
template <class T>
void grouped_outer(Workspace& workspace, const GroupedOuter& shape, const std::int64_t* counts,
                   const T* a, const T* b, T* c);

extern template void grouped_gemm(Workspace&, const GroupedGemm&, const std::int64_t*, const float*,
                                  const float*, float*);
extern template void grouped_gemm(Workspace&, const GroupedGemm&, const std::int64_t*,
                                  const double*, const double*, double*);
extern template void grouped_gemm(Workspace&, const GroupedGemm&, const std::int64_t*,
                                  const BFloat16*, const BFloat16*, BFloat16*);
extern template void grouped_gemm(Workspace&, const GroupedGemm&, const std::int64_t*, const Half*,
                                  const Half*, Half*);
extern template void grouped_outer(Workspace&, const GroupedOuter&, const std::int64_t*,
                                   const float*, const float*, float*);
extern template void grouped_outer(Workspace&, const GroupedOuter&, const std::int64_t*,
                                   const double*, const double*, double*);
extern template void grouped_outer(Workspace&, const GroupedOuter&, const std::int64_t*,
                                   const BFloat16*, const BFloat16*, BFloat16*);
extern template void grouped_outer(Workspace&, const GroupedOuter&, const std::int64_t*,
                                   const Half*, const Half*, Half*);

}  // namespace tessera::kernels
