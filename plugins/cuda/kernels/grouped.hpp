// The structure of products of groups of rows.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// An array by groups, rows and columns; strides in elements.
struct GroupedMatrix {
  void* data;
  std::int64_t group, row, column;
  DType type;
};

/// Rows of `a` in groups, one after the other, of which `counts` has the numbers; behind the last
/// one are rows of no group. Products: y [rows, n] = a [rows, k] times the group's b [k, n]. Outer
/// ones: y [groups, m, n] = a [rows, m] transposed times b [rows, n], over the group's rows.
struct GroupedArguments {
  std::int64_t groups, rows, m, n, k;
  GroupedMatrix a, b, y;
  const std::int64_t* counts;
  std::int64_t step_of_counts;
  Problem* problem;
  std::int32_t op;
};

}  // namespace tessera::cuda
