// The structure of sums over a list of tensors.
#pragma once
#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// Tensors of one launch, of one type, that adds up the squares of each.
inline constexpr int most_listed = 256;
/// A contiguous tensor whose elements are added up in parts, a block each.
struct TensorInList {
  const void* data;
  std::int64_t count;
  std::int64_t each;  // elements of a part
  std::int32_t first_part;
  std::int32_t result;  // its place among the results
};
struct ListArguments {
  double* results;   // of the operator's tensors
  double* partials;  // one for each part of all tensors
  int count;
  int parts;
  TensorInList tensors[most_listed];
};

}  // namespace tessera::cuda
