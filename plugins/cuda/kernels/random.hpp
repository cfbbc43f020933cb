// The structures of random fillings.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"
#include "shared/functions/philox.hpp"

namespace tessera::cuda {

/// The elements of a result, each from the word of its place in a sequence (RandomRange of
/// modules/ops/shared/kernels/philox.hpp). A thread has four elements in a row.
struct RandomArguments {
  ElementArguments elements;  // the result
  PartPlaces places;
  functions::PhiloxKeyWords key;
  std::uint64_t offset;
  std::uint64_t run, stride;  // run 0: the tensor is one run
  float low, width;           // of uniform numbers
  std::uint64_t limit;        // words below it are 1, the others 0
};

inline constexpr int random_per_thread = 4;

}  // namespace tessera::cuda
