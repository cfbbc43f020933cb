// What losses share: their reduction, and kernels of two elements.
module;
#include "pointwise/kernels/functions.hpp"
module tessera.ops:loss_call;

import tessera.base;
import tessera.tensor;
import :loss;

namespace tessera::ops::losses {

/// Errors: a or b is undefined, or their shapes differ.
void check_same_shape(const char* op, const Tensor& a, const Tensor& b);
/// The losses of all elements, reduced.
Tensor reduced(const Tensor& each, Reduction reduction);

/// One floating type, both operands broadcast together.
void infer_elements(const Call& call, ResultShapes& out);
void apply_elements(kernels::FunctionOp op, const Call& call, Tensor& y);

template <kernels::FunctionOp op>
inline void element_cpu(const Call& call, std::span<Tensor> out) {
  apply_elements(op, call, out[0]);
}

}  // namespace tessera::ops::losses
