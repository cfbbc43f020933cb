#pragma once
// The kernels with a workspace, called with one of exactly the size that they announce, between
// bytes that they must not write, and full of bytes that they must not read.

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "attention/kernels/attention.hpp"
#include "catch.hpp"
#include "convolution/kernels/convolution.hpp"
#include "matmul/kernels/gemm.hpp"
#include "matmul/kernels/grouped_gemm.hpp"
#include "matmul/kernels/integer_gemm.hpp"
#include "norm/kernels/norm.hpp"
#include "reduce/kernels/moments.hpp"
#include "reduce/kernels/reduce.hpp"
#include "shared/kernels/workspace.hpp"
#include "sort/kernels/sort.hpp"

namespace tessera::kernels::in_workspace {

/// Returns kernel(workspace).
template <class Kernel>
auto run(const Kernel& kernel) {
  Workspace counting;
  kernel(counting);
  constexpr std::size_t margin = 4 * Workspace::kAlignment;
  constexpr auto filled = std::byte{0xff};  // NaN, or an index far outside
  const std::size_t bytes = counting.bytes();
  std::vector<std::byte> memory(bytes + 3 * margin, filled);
  auto* const start = memory.data() + margin;
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  auto* const aligned = start + (Workspace::kAlignment - address % Workspace::kAlignment);
  const auto check_margins = [&] {
    bool intact = true;
    for (const std::byte* at = memory.data(); at < aligned; ++at) intact = intact && *at == filled;
    const std::byte* const end = memory.data() + memory.size();
    for (const std::byte* at = aligned + bytes; at < end; ++at) intact = intact && *at == filled;
    REQUIRE(intact);
  };
  Workspace workspace(aligned, bytes);
  if constexpr (std::is_void_v<decltype(kernel(workspace))>) {
    kernel(workspace);
    check_margins();
  } else {
    const auto result = kernel(workspace);
    check_margins();
    return result;
  }
}

// The same for kernels whose first argument is their workspace.

template <class T, class Out>
void gemm(const Gemm& shape, const T* a, const T* b, Out* c) {
  return run([&](Workspace& w) { return kernels::gemm(w, shape, a, b, c); });
}

template <class T>
void integer_gemm(const Gemm& shape, const T* a, const T* b, T* c) {
  return run([&](Workspace& w) { return kernels::integer_gemm(w, shape, a, b, c); });
}

template <class T>
void grouped_gemm(const GroupedGemm& shape, const std::int64_t* counts, const T* a, const T* b,
                  T* c) {
  return run([&](Workspace& w) { return kernels::grouped_gemm(w, shape, counts, a, b, c); });
}

template <class T>
void grouped_outer(const GroupedOuter& shape, const std::int64_t* counts, const T* a, const T* b,
                   T* c) {
  return run([&](Workspace& w) { return kernels::grouped_outer(w, shape, counts, a, b, c); });
}

template <class T>
void softmax_forward(std::int64_t rows, std::int64_t n, const T* x, T* y) {
  return run([&](Workspace& w) { return kernels::softmax_forward(w, rows, n, x, y); });
}

template <class T>
void softmax_columns_forward(bool logarithm, std::int64_t outer, std::int64_t n, std::int64_t inner,
                             const T* x, T* y) {
  return run([&](Workspace& w) {
    return kernels::softmax_columns_forward(w, logarithm, outer, n, inner, x, y);
  });
}

template <class T>
void rms_norm_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* x, const T* weight,
                       const Compute<T>* rstd, T* dx, Compute<T>* dweight,
                       bool accumulate = false) {
  return run([&](Workspace& w) {
    return kernels::rms_norm_backward(w, rows, n, dy, x, weight, rstd, dx, dweight, accumulate);
  });
}

template <class T>
void layer_norm_backward(std::int64_t rows, std::int64_t n, const T* dy, const T* x,
                         const T* weight, const Compute<T>* mean, const Compute<T>* rstd, T* dx,
                         Compute<T>* dweight, Compute<T>* dbias, bool accumulate = false) {
  return run([&](Workspace& w) {
    return kernels::layer_norm_backward(w, rows, n, dy, x, weight, mean, rstd, dx, dweight, dbias,
                                        accumulate);
  });
}

inline void reduce(ReduceOp op, DType dtype, const ReduceShape& shape, const void* x, void* y) {
  return run([&](Workspace& w) { return kernels::reduce(w, op, dtype, shape, x, y); });
}

inline void argmax(DType dtype, const ReduceShape& shape, const void* x, std::int64_t* y) {
  return run([&](Workspace& w) { return kernels::argmax(w, dtype, shape, x, y); });
}

inline void argmin(DType dtype, const ReduceShape& shape, const void* x, std::int64_t* y) {
  return run([&](Workspace& w) { return kernels::argmin(w, dtype, shape, x, y); });
}

inline void norm(DType dtype, const ReduceShape& shape, const void* x, double p, void* y) {
  return run([&](Workspace& w) { return kernels::norm(w, dtype, shape, x, p, y); });
}

inline double sum_of_squares(DType dtype, std::int64_t count, const void* x) {
  return run([&](Workspace& w) { return kernels::sum_of_squares(w, dtype, count, x); });
}

inline double max_abs(DType dtype, std::int64_t count, const void* x) {
  return run([&](Workspace& w) { return kernels::max_abs(w, dtype, count, x); });
}

inline void variance(DType dtype, const ReduceShape& shape, const void* x, double correction,
                     bool root, void* y) {
  return run(
      [&](Workspace& w) { return kernels::variance(w, dtype, shape, x, correction, root, y); });
}

inline void log_sum_exp(DType dtype, const ReduceShape& shape, const void* x, void* y) {
  return run([&](Workspace& w) { return kernels::log_sum_exp(w, dtype, shape, x, y); });
}

inline void sort(DType dtype, const SortShape& shape, bool descending, const void* x, void* values,
                 std::int64_t* indices) {
  return run(
      [&](Workspace& w) { return kernels::sort(w, dtype, shape, descending, x, values, indices); });
}

template <class T>
void convolve(const Convolutions& shape, const T* x, const T* weight, T* y, bool accumulate) {
  return run([&](Workspace& w) { return kernels::convolve(w, shape, x, weight, y, accumulate); });
}

template <class T>
void convolve_grad_input(const Convolutions& shape, const T* dy, const T* weight, Compute<T>* dx) {
  return run([&](Workspace& w) { return kernels::convolve_grad_input(w, shape, dy, weight, dx); });
}

template <class T>
void convolve_grad_weight(const Convolutions& shape, const T* dy, const T* x, Compute<T>* dweight) {
  return run([&](Workspace& w) { return kernels::convolve_grad_weight(w, shape, dy, x, dweight); });
}

template <class T, class Lse>
void attention_forward(const AttentionShape& shape, const T* q, AttentionStrides q_strides,
                       const T* k, AttentionStrides k_strides, const T* v,
                       AttentionStrides v_strides, T* out, AttentionStrides out_strides, Lse* lse,
                       const AttentionMask<T>& mask = {}) {
  return run([&](Workspace& w) {
    return kernels::attention_forward(w, shape, q, q_strides, k, k_strides, v, v_strides, out,
                                      out_strides, lse, mask);
  });
}

template <class T, class Lse>
void attention_backward(const AttentionShape& shape, const AttentionGradient<T, Lse>& arguments) {
  return run([&](Workspace& w) { return kernels::attention_backward(w, shape, arguments); });
}

}  // namespace tessera::kernels::in_workspace
