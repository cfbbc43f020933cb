// The structures of optimizers' steps: their rules are the CPU's (modules/ops/optimizer/functions).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/arguments.hpp"
#include "optimizer/functions/adam.hpp"
#include "optimizer/functions/quantization.hpp"
#include "shared/functions/philox.hpp"

namespace tessera::cuda {

/// Parameters of one launch. A step has as many launches as its parameters need.
inline constexpr int most_updates = 16;
inline constexpr std::size_t most_states = 3;

/// Elements that one thread of a step computes, so that what it does before them is a small part.
inline constexpr unsigned updated_per_thread = 16;

/// One parameter, contiguous as its states are, and its gradient.
struct Update {
  void* parameter;
  StridedArray gradient;
  std::int64_t extents[most_dims];  // of the gradient's strides
  int dims;
  void* states[most_states];  // null: not needed
  std::int64_t count;
  std::int64_t first_block;
};

/// One parameter in bf16 whose step is rounded with random numbers, by the elements' places in the
/// whole parameter that this is a part of.
struct RoundedAdamArguments {
  Update update;
  functions::Adam rule;
  functions::PhiloxKeyWords key;
  std::uint64_t first_number;  // of the step
  PartPlaces places;           // in the whole parameter
};

/// A rule's step for several parameters.
template <class Rule>
struct UpdateArguments {
  static_assert(Rule::states <= most_states);
  Update updates[most_updates];
  int count;
  Rule rule;
};

/// One parameter whose moments are codes, with a scale for each block of a row.
struct QuantizedAdamArguments {
  Update update;  // without states
  functions::Adam rule;
  std::int64_t row;     // its length
  std::int64_t blocks;  // of a row
  std::int64_t all_blocks;
  std::uint8_t* codes[2];
  void* scales[2];  // of the parameter's type
  float values[2][256];
};

}  // namespace tessera::cuda
