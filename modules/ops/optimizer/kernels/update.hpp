#pragma once
// Steps of optimizers, each in one pass over flat arrays, by the rules in optimizer/functions.

#include <cstdint>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

/// One step for `count` elements; no array aliases another. `states` has Rule::states pointers to
/// arrays of the parameter's type; those that the rule does not need may be null. False where the
/// types are not f32 with f32, bf16 or f16, or f64 with f64: nothing was written then.
template <class Rule>
bool update(const Rule& rule, DType parameter_type, DType gradient_type, std::int64_t count,
            void* parameter, const void* gradient, void* const* states);

}  // namespace tessera::kernels
