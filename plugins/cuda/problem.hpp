// The errors that kernels find. Include it after the import of tessera.base.
#pragma once
#include "kernels/arguments.hpp"

namespace tessera::cuda {

/// The error in the words of the CPU's kernel.
ErrorFields problem_fields(const Problem& problem);

}  // namespace tessera::cuda
