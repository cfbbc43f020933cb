#pragma once
// Rows and elements chosen by index. Index: std::int32_t or std::int64_t.
// T: float, double, BFloat16, Half, std::int64_t, std::int32_t, std::uint8_t (what adds: not the
// last). Sums are formed in Summed<T>, which is wider than T where T has 16 bits.

#include <cstdint>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// y[i, :] = table[indices[i] - offset, :], or zeros where the index lies outside [offset, offset +
/// count): so a table whose rows are sharded gives a partial sum. table [count, width], y [n,
/// width].
template <class T, class Index>
void embedding_forward(std::int64_t n, std::int64_t width, std::int64_t offset, std::int64_t count,
                       const T* table, const Index* indices, T* y);

/// dtable[indices[i] - offset, :] += dy[i, :] for i in order (rows outside are left out); dtable is
/// not cleared first. Floating types.
template <class T, class Index>
void embedding_backward(std::int64_t n, std::int64_t width, std::int64_t offset, std::int64_t count,
                        const T* dy, const Index* indices, Summed<T>* dtable);

/// Arrays seen as [outer, extent, inner] (the middle one is the indexed dim), contiguous.
struct IndexShape {
  std::int64_t outer = 1;
  std::int64_t extent = 1;   // of the source (gather, select) or the destination (scatter, add)
  std::int64_t indices = 1;  // extent of the indexed dim of the other one
  std::int64_t inner = 1;
};

// These return false, and leave the output unspecified, if an index is outside [0, extent).

/// y[o, j, i] = x[o, indices[j], i].
template <class T, class Index>
[[nodiscard]] bool index_select(const IndexShape& shape, const T* x, const Index* indices, T* y);

/// y[o, indices[j], i] += x[o, j, i], j in order: the gradient of index_select.
template <class T, class Index>
[[nodiscard]] bool index_add(const IndexShape& shape, const T* x, const Index* indices,
                             Summed<T>* y);

/// y[o, j, i] = x[o, indices[o, j, i], i].
template <class T, class Index>
[[nodiscard]] bool gather(const IndexShape& shape, const T* x, const Index* indices, T* y);

/// y[o, indices[o, j, i], i] = x[o, j, i], j in order (the last one stays).
template <class T, class Index>
[[nodiscard]] bool scatter(const IndexShape& shape, const T* x, const Index* indices, T* y);

/// y[o, indices[o, j, i], i] += x[o, j, i], j in order: the gradient of gather.
template <class T, class Index>
[[nodiscard]] bool scatter_add(const IndexShape& shape, const T* x, const Index* indices,
                               Summed<T>* y);

}  // namespace tessera::kernels
