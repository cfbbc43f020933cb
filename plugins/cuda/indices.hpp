// Checks of indices. Include it after kernels.hpp.
#pragma once
#include <cstdint>

#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// Notes the first index that is not in [0, limit), for the host to raise where it waits; one that
/// is `ignored` is right.
void look_at(const Call& call, const Tensor& indices, std::int64_t limit, ProblemKind kind,
             std::int64_t ignored = 0);
/// Errors: a type that is none of indices.
void check_index_type(const Call& call, const Tensor& indices);

}  // namespace tessera::cuda
