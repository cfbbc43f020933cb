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

/// Which part of a dim is here: its first place, how long all parts are.
struct Part {
  std::int64_t first = 0;
  std::int64_t whole = 0;
};
inline Part part_of(const SpecArgument& whole, int dim, std::int64_t here) {
  return whole ? Part{local_offset(*whole)[dim], whole->shape[dim]} : Part{0, here};
}

}  // namespace tessera::cuda
