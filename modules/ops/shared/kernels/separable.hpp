#pragma once
// One dim at a time: elements chosen along a dim (flip, roll, pad), and linear maps along a dim
// with few terms for each result (average pooling, interpolation, padding's gradient). Arrays are
// seen as [outer, extent, inner], contiguous.

#include <cstdint>
#include <span>

#include "workspace.hpp"

namespace tessera::kernels {

/// y[o, j, i] = x[o, source[j], i], or *fill where source[j] < 0. Elements of 1, 2, 4 or 8 bytes. y
/// is not x.
void choose_slices(std::int64_t element_size, std::int64_t outer, std::int64_t extent,
                   std::int64_t inner, std::span<const std::int64_t> source, const void* x,
                   const void* fill, void* y);

/// A linear map of a dim: result j is the sum over k in [first[j], first[j + 1]) of weight[k] times
/// element index[k].
struct SparseMap {
  SparseMap(Workspace& w, std::int64_t result_count, std::int64_t terms)
      : results(result_count),
        first(w.take<std::int64_t>(results + 1)),
        index(w.take<std::int64_t>(terms)),
        weight(w.take<double>(terms)) {}

  std::int64_t results;
  std::int64_t* first;
  std::int64_t* index;
  double* weight;
};

/// y[o, j, i] = sum over k of weight[k] x[o, index[k], i], in the order of k.
template <class T>
void apply(const SparseMap& map, std::int64_t outer, std::int64_t extent, std::int64_t inner,
           const T* x, T* y);

/// The transposed map, x[o, index[k], i] = sum of weight[k] y[o, j, i], in the order of j and k:
/// the gradient of apply().
template <class T>
void apply_transposed(const SparseMap& map, std::int64_t outer, std::int64_t extent,
                      std::int64_t inner, const T* y, T* x);

// T: float, double.

}  // namespace tessera::kernels
