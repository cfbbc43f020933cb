#pragma once
// The kernels of functions of elements (pointwise/functions), over untyped arrays. Floating types
// compute in float, double in double. A type that the function does not take throws
// std::invalid_argument.

#include <cstddef>
#include <cstdint>
#include <span>

#include "pointwise.hpp"

namespace tessera::kernels {

/// A function on contiguous arrays of `count` elements in the type that it computes in. y may be an
/// operand.
using FunctionKernel = void (*)(std::int64_t count, const void* const* operands,
                                const double* numbers, void* y);

/// A function by the type of its operands; null: it does not take the type. 16-bit floating types
/// have f32's, in which they are computed.
struct FunctionKernels {
  FunctionKernel by_type[dtype_count] = {};
  constexpr FunctionKernel operator[](DType dtype) const {
    return by_type[static_cast<int>(dtype)];
  }
  bool is_truth = false;  // its results are bool
};

/// F with so many operands and numbers. The sources of this folder say of which there are.
template <class F, std::size_t operands, std::size_t numbers = 0>
const FunctionKernels& kernels_of();

/// An operand that broadcasts: strides in elements.
struct Operand {
  const void* data = nullptr;
  Extents strides;
};

/// y = f(operands; numbers), all contiguous and of one type.
void apply(const FunctionKernels& function, DType dtype, std::int64_t count,
           std::span<const void* const> operands, std::span<const double> numbers, void* y);
/// Applies the function to operands that broadcast to `extents`; y is contiguous.
void apply_strided(const FunctionKernels& function, DType dtype, Extents extents,
                   std::span<const Operand> operands, std::span<const double> numbers, void* y);

template <class F>
void unary(DType dtype, std::int64_t count, const void* x, void* y) {
  apply(kernels_of<F, 1>(), dtype, count, {{x}}, {}, y);
}
template <class F>
void binary(DType dtype, std::int64_t count, const void* a, const void* b, void* y) {
  apply(kernels_of<F, 2>(), dtype, count, {{a, b}}, {}, y);
}
/// With a number in the place of the second operand.
template <class F>
void with_number(DType dtype, std::int64_t count, const void* a, double number, void* y) {
  apply(kernels_of<F, 1, 1>(), dtype, count, {{a}}, {{number}}, y);
}

}  // namespace tessera::kernels
