#pragma once
// Matrix products by oneDNN, versions 2 and 3.

#include "gemm.hpp"

namespace tessera::kernels::onednn {

/// C = op(A) op(B) (+ C) for extents of at least 1, computed by the calling thread; false where
/// oneDNN has no kernel for the types or the strides. Columns whose elements are not adjacent are
/// copied into the workspace. Counting alone takes a kernel for a single float product for granted.
/// Primitives are cached for each thread; they are not workspace. T/Out: float/float,
/// BFloat16/BFloat16, BFloat16/float.
template <class T, class Out>
bool product(Workspace& workspace, const Gemm& shape, const T* a, const T* b, Out* c);

/// Does the bfloat16 product beat the float product on widened operands? With AMX, and on AMD's
/// processors; Intel's vdpbf16ps alone has half of the float rate (measured: 84 against 155
/// GFLOP/s).
bool native_bfloat16();

}  // namespace tessera::kernels::onednn
