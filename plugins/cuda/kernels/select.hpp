// The structures of kernels that choose by indices.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"
#include "kernels/sort.hpp"

namespace tessera::cuda {

/// y = x at an index along one dim. Operands: x, which stays at the dim's first place, and indices.
struct TakeArguments {
  ElementArguments elements;
  std::int64_t step;    // of x along the dim
  std::int64_t extent;  // of x there
};

/// y = base plus the elements of source that have y's place as their index along `dim`. A line of
/// entries has the indices that y's elements along the dim look for.
struct IndexedSumArguments {
  std::int64_t count;
  std::int64_t extents[most_dims];  // of y
  int dims;
  int dim;
  StridedArray y;
  StridedArray base;    // without data: zeros
  StridedArray source;  // its places are the indices' along `dim`
  int place_dims;       // in which the indices' places count
  std::int64_t place_extents[most_dims];
  std::int64_t place_strides[most_dims];  // of source
  const SortedEntry* entries;
  std::int64_t entries_of_line;
  std::int64_t lines[most_dims];    // strides of the number of a line; 0 along `dim`
  std::int64_t reached[most_dims];  // extents beyond which no index is
  std::int64_t first;               // the index of y's first place
};

}  // namespace tessera::cuda
