#pragma once
// Elements in order along one dim.

#include <cstdint>

#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

/// Shape of contiguous arrays [outer, reduced, inner]: lines along the middle dim, of which the
/// first `count` (<= reduced) elements in order are wanted.
struct SortShape {
  std::int64_t outer = 1;
  std::int64_t reduced = 1;
  std::int64_t inner = 1;
  std::int64_t count = 1;
};

/// values and indices [outer, count, inner]: the first elements of each line, in ascending or
/// descending order, and their positions in the line. NaN is the largest; equal elements (also 0
/// and -0) stay in their order, so there is one result, whatever the number of threads. All types.
/// Takes the keys and positions of a line, twice, for each thread, or for one line that all share.
void sort(Workspace& workspace, DType dtype, const SortShape& shape, bool descending, const void* x,
          void* values, std::int64_t* indices);

}  // namespace tessera::kernels
