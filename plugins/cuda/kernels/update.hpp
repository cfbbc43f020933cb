// The structure of an optimizer's step: its rule is the CPU's (modules/ops/optimizer/functions).
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"
#include "optimizer/functions/adam.hpp"
#include "shared/functions/philox.hpp"

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

/// One parameter in bf16 whose step is rounded with random numbers, by the elements' places in the
/// whole parameter that this is a part of.
struct RoundedAdamArguments {
  Update update;
  functions::Adam rule;
  functions::PhiloxKeyWords key;
  std::uint64_t first_number;      // of the step
  std::int64_t first_place;        // in the whole parameter, of the part's first element
  std::int64_t part[most_dims];    // extents
  std::int64_t places[most_dims];  // strides of the whole parameter
  int dims;
};

struct AdamArguments {
  Update updates[most_updates];
  int count;
  functions::Adam rule;
};

}  // namespace tessera::cuda
