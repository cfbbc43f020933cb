#pragma once
// Elementwise kernels over untyped arrays. Contiguous ones take a count; strided ones extents and
// strides (in elements, 0 repeats an operand), at most 8 dims. Floating types compute in float,
// double in double. Which combinations exist stands at each function; others throw
// std::invalid_argument.

#include <cstdint>
#include <span>

#include "shared/kernels/types.hpp"

namespace tessera::kernels {

inline constexpr int kMaxDims = 8;
using Extents = std::span<const std::int64_t>;

enum class UnaryOp : std::uint8_t {
  neg,
  abs,
  square,
  sign,  // all types but bool
  exp,
  log,
  sqrt,
  rsqrt,
  reciprocal,
  sin,
  cos,
  tanh,  // floating types from here
  sigmoid,
  relu,
  silu,
  gelu,
  gelu_tanh,
  erf,
  floor,
  ceil,
  round,
  log1p,
  expm1
};

enum class BinaryOp : std::uint8_t {
  add,
  sub,
  mul,
  div,
  maximum,
  minimum,
  pow,
  fmod,          // all types but bool
  remainder,     // all types but bool
  floor_divide,  // all types but bool
  atan2,         // floating types
  bitwise_and,   // bool and integers from here
  bitwise_or,
  bitwise_xor
};

/// Their output is bool. The logical ones take bool operands.
enum class CompareOp : std::uint8_t {
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,
  logical_or,
  logical_xor
};

/// y = op(x). y may be x. f32: at most about 2 units in the last place, in the whole range; but
/// gelu below 0 to 5e-6 relative, and 0 below -6; and gelu_tanh far below 0, where 1 + tanh
/// cancels, only to about 1e-7 |x| absolute. round is half to even; relu(NaN) is NaN; gelu is the
/// erf form, gelu_tanh the tanh approximation.
void unary(UnaryOp op, DType dtype, std::int64_t count, const void* x, void* y);

/// dx = op'(x) dy. dx may be x or dy. Floating types. (sign, floor, ceil, round, trunc give 0; abs'
/// gives sign.)
void unary_backward(UnaryOp op, DType dtype, std::int64_t count, const void* x, const void* dy,
                    void* dx);

/// y = a op b, all contiguous and of one type. y may be a or b. Integers: div truncates towards 0
/// (division by 0 gives 0, the remainders too), pow by squaring. fmod has a's sign; remainder has
/// b's, and a = floor_divide b + remainder. bool: add and maximum are or, mul and minimum and.
/// maximum and minimum give NaN where an operand is NaN.
void binary(BinaryOp op, DType dtype, std::int64_t count, const void* a, const void* b, void* y);

/// y = a op value, or value op a when `scalar_first`. y may be a.
void binary_scalar(BinaryOp op, DType dtype, std::int64_t count, const void* a, double value,
                   void* y, bool scalar_first = false);

/// y = a op b with strides for all three; y's elements are distinct and y overlaps an operand only
/// if it is exactly that operand.
void binary_strided(BinaryOp op, DType dtype, Extents extents, const void* a, Extents a_strides,
                    const void* b, Extents b_strides, void* y, Extents y_strides);

/// y (bool) = a op b. All types.
void compare(CompareOp op, DType dtype, std::int64_t count, const void* a, const void* b,
             std::uint8_t* y);
void compare_scalar(CompareOp op, DType dtype, std::int64_t count, const void* a, double value,
                    std::uint8_t* y);
void compare_strided(CompareOp op, DType dtype, Extents extents, const void* a, Extents a_strides,
                     const void* b, Extents b_strides, std::uint8_t* y, Extents y_strides);

/// y = a + alpha b. y may be a or b. All types but bool.
void add(DType dtype, std::int64_t count, const void* a, const void* b, double alpha, void* y);
/// As binary_strided.
void add_strided(DType dtype, Extents extents, const void* a, Extents a_strides, const void* b,
                 Extents b_strides, double alpha, void* y, Extents y_strides);

/// y = condition ? a : b (condition: bool bytes). y may be a or b. All types.
void where(DType dtype, std::int64_t count, const std::uint8_t* condition, const void* a,
           const void* b, void* y);
void where_strided(DType dtype, Extents extents, const std::uint8_t* condition,
                   Extents condition_strides, const void* a, Extents a_strides, const void* b,
                   Extents b_strides, void* y, Extents y_strides);

/// y = mask ? value : x. y may be x. All types.
void masked_fill(DType dtype, std::int64_t count, const void* x, const std::uint8_t* mask,
                 double value, void* y);

/// y = value. All types.
void fill(DType dtype, std::int64_t count, double value, void* y);

/// y = x converted: floats round to nearest even, floating to integer truncates towards 0 (NaN
/// gives 0, out of range saturates), to bool is x != 0. x and y alias only if the types are equal.
void cast(DType from, DType to, std::int64_t count, const void* x, void* y);

/// y[index] = x[index], both strided: transposes (in tiles), slices, broadcasts. No aliasing.
void copy_strided(DType dtype, Extents extents, const void* x, Extents x_strides, void* y,
                  Extents y_strides);

}  // namespace tessera::kernels
