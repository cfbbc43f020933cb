#pragma once
// Work in the first-level cache, to measure how fast the functions are that kernels consist of.

#include <cstdint>

namespace tessera::kernels {

/// About `count` exponentials of floats that are not positive, as in softmax.
void compute_exponentials(std::int64_t count);

/// About `count` words of Philox, as in dropout.
void compute_random_words(std::int64_t count);

}  // namespace tessera::kernels
