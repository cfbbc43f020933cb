// The structure of products of codes with factors.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// Factors of codes: of each dim, one for each of some blocks.
struct Factors {
  const float* data;
  std::int64_t extents[most_dims];  // of the codes
  std::int64_t blocks[most_dims];   // elements of a block
  std::int64_t strides[most_dims];
  int first_kept, last_kept;      // dims of the result's rows, or columns
  int first_summed, last_summed;  // dims that are summed over
  bool vary;                      // along those that are summed over
};

/// The product of codes, in f32, times the factors of its rows and columns.
struct ScaledArguments {
  ProductArguments product;
  Factors a, b;
};

}  // namespace tessera::cuda
