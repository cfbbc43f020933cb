// The structure of an optimizer's step: its rule is the CPU's (modules/ops/optimizer/functions).
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"
#include "optimizer/functions/adam.hpp"

namespace tessera::cuda {

/// Parameters of one launch. A step has as many launches as its parameters need.
inline constexpr int most_updates = 16;

/// One parameter, contiguous as its states are, and its gradient.
struct Update {
  void* parameter;
  Strided gradient;
  std::int64_t extents[most_dims];  // of the gradient's strides
  int dims;
  void* states[functions::Adam::states];  // null: not needed
  std::int64_t count;
  std::int64_t first_block;
};

struct AdamArguments {
  Update updates[most_updates];
  int count;
  functions::Adam rule;
};

}  // namespace tessera::cuda
