#pragma once
// Adam's step for parameters and states in bf16, which are rounded with random bits.

#include <cstdint>

#include "optimizer/functions/adam.hpp"
#include "shared/kernels/philox.hpp"
#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// One step for `count` elements, computed in f32 and rounded by stochastic_bf16; no array aliases
/// another. `range` begins with the first element's numbers, rounding_words for each. States that
/// the rule does not need may be null. False where the gradient is neither f32 nor bf16: nothing
/// was written then.
bool rounded_adam(const functions::Adam& rule, DType gradient_type, const RandomRange& range,
                  std::int64_t count, BFloat16* parameter, const void* gradient,
                  BFloat16* const* states);

}  // namespace tessera::kernels
