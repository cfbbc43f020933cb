// Some loops that ask for vectors stay scalar: a constant result, for one, or pow. Stands before
// the headers, as the warning is placed where the loop is inlined.
#pragma clang diagnostic ignored "-Wpass-failed"

#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "elementwise.hpp"
#include "shared/kernels/simd_math.hpp"

namespace tessera::kernels {
namespace {

using elementwise::Access;

constexpr int kBinaryOps = static_cast<int>(BinaryOp::bitwise_xor) + 1;
constexpr int kCompareOps = static_cast<int>(CompareOp::logical_xor) + 1;

/// Integer power by squaring, modulo the type's range; a negative exponent gives 0 (1 for base 1).
template <class T>
T integer_power(T base, T exponent) {
  if constexpr (std::is_signed_v<T>) {
    if (exponent < 0)
      return base == 1 ? T{1} : (base == -1 ? (exponent % 2 == 0 ? T{1} : T{-1}) : T{0});
  }
  std::uint64_t result = 1;
  auto square = static_cast<std::uint64_t>(base);
  for (auto rest = static_cast<std::uint64_t>(exponent); rest != 0; rest >>= 1) {
    if ((rest & 1) != 0) result *= square;
    square *= square;
  }
  return static_cast<T>(result);
}

/// Signed sums and products wrap around.
template <class T>
using Wrapping = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// fmod, remainder or floor_divide of integers; of 0 where b is 0.
template <BinaryOp kOp, class T>
T integer_quotient(T a, T b) {
  if (b == 0) return T{0};
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) {  // the lowest value has no negative
      return kOp == BinaryOp::floor_divide
                 ? static_cast<T>(Wrapping<T>{0} - static_cast<Wrapping<T>>(a))
                 : T{0};
    }
  }
  const auto rest = static_cast<T>(a % b);
  const bool down = rest != 0 && (rest < 0) != (b < 0);
  if constexpr (kOp == BinaryOp::fmod) return rest;
  if constexpr (kOp == BinaryOp::remainder) return static_cast<T>(down ? rest + b : rest);
  return static_cast<T>(down ? a / b - 1 : a / b);
}

/// The same of floats: Python's definition, in which quotient and remainder fit each other.
template <BinaryOp kOp, class T>
T floating_quotient(T a, T b) {
  T rest = std::fmod(a, b);
  if constexpr (kOp == BinaryOp::fmod) return rest;
  const bool down = rest != 0 && (rest < 0) != (b < 0);
  if constexpr (kOp == BinaryOp::remainder) return down ? rest + b : rest;
  if (b == 0) return a / b;
  const T quotient = (a - rest) / b - (down ? 1 : 0);
  if (quotient == 0) return std::copysign(T{0}, a / b);
  const T floored = std::floor(quotient);
  return quotient - floored > static_cast<T>(0.5) ? floored + 1 : floored;
}

template <BinaryOp kOp>
constexpr bool kIsQuotient =
    kOp == BinaryOp::fmod || kOp == BinaryOp::remainder || kOp == BinaryOp::floor_divide;

template <BinaryOp kOp, class T>
[[gnu::always_inline]] inline T apply(T a, T b) {
  using enum BinaryOp;
  if constexpr (std::is_same_v<T, bool>) {
    if constexpr (kOp == add || kOp == maximum || kOp == bitwise_or) return a || b;
    if constexpr (kOp == mul || kOp == minimum || kOp == bitwise_and) return a && b;
    if constexpr (kOp == bitwise_xor) return a != b;
    return false;  // refused before
  } else if constexpr (std::is_floating_point_v<T>) {
    if constexpr (kOp == add) return a + b;
    if constexpr (kOp == sub) return a - b;
    if constexpr (kOp == mul) return a * b;
    if constexpr (kOp == div) return a / b;
    if constexpr (kOp == maximum) return simd::larger(a, b);
    if constexpr (kOp == minimum) return simd::smaller(a, b);
    if constexpr (kOp == pow) return std::pow(a, b);
    if constexpr (kOp == atan2) return std::atan2(a, b);
    if constexpr (kIsQuotient<kOp>) return floating_quotient<kOp>(a, b);
    return T{};  // bits, refused before
  } else {
    using W = Wrapping<T>;
    if constexpr (kOp == add) return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
    if constexpr (kOp == sub) return static_cast<T>(static_cast<W>(a) - static_cast<W>(b));
    if constexpr (kOp == mul) return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    if constexpr (kOp == div) {
      if (b == 0) return T{0};
      if constexpr (std::is_signed_v<T>) {
        if (b == -1)
          return static_cast<T>(W{0} - static_cast<W>(a));  // the lowest value has no negative
      }
      return static_cast<T>(a / b);
    }
    if constexpr (kOp == maximum) return a > b ? a : b;
    if constexpr (kOp == minimum) return a < b ? a : b;
    if constexpr (kOp == pow) return integer_power(a, b);
    if constexpr (kIsQuotient<kOp>) return integer_quotient<kOp>(a, b);
    if constexpr (kOp == bitwise_and) return static_cast<T>(a & b);
    if constexpr (kOp == bitwise_or) return static_cast<T>(a | b);
    if constexpr (kOp == bitwise_xor) return static_cast<T>(a ^ b);
    return T{};  // atan2, refused before
  }
}

template <CompareOp kOp, class T>
[[gnu::always_inline]] inline bool holds(T a, T b) {
  using enum CompareOp;
  if constexpr (kOp == equal) return a == b;
  if constexpr (kOp == not_equal) return a != b;
  if constexpr (kOp == less) return a < b;
  if constexpr (kOp == less_equal) return a <= b;
  if constexpr (kOp == greater) return a > b;
  if constexpr (kOp == greater_equal) return a >= b;
  const bool left = a != T{};
  const bool right = b != T{};
  if constexpr (kOp == logical_and) return left && right;
  if constexpr (kOp == logical_or) return left || right;
  if constexpr (kOp == logical_xor) return left != right;
}

// The loops are told that iterations are independent: results overlap an operand only exactly.

template <class T, BinaryOp kOp>
void binary_kernel(std::int64_t count, const void* a, const void* b, void* y) {
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* out = static_cast<T*>(y);
  constexpr bool kScalar = kOp == BinaryOp::pow || kIsQuotient<kOp> || kOp == BinaryOp::atan2 ||
                           (kOp == BinaryOp::div && std::is_integral_v<T>);
  if constexpr (kScalar) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = apply<kOp, T>(left[i], right[i]);
  } else {
    simd::dispatch([&](auto) __attribute__((always_inline)) {
#pragma clang loop vectorize(assume_safety)
      for (std::int64_t i = 0; i < count; ++i) out[i] = apply<kOp, T>(left[i], right[i]);
    });
  }
}

template <class T, CompareOp kOp>
void compare_kernel(std::int64_t count, const void* a, const void* b, void* y) {
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* out = static_cast<std::uint8_t*>(y);
  simd::dispatch([&](auto) __attribute__((always_inline)) {
#pragma clang loop vectorize(assume_safety)
    for (std::int64_t i = 0; i < count; ++i) out[i] = holds<kOp, T>(left[i], right[i]) ? 1 : 0;
  });
}

using KernelPointer = void (*)(std::int64_t, const void*, const void*, void*);

template <class T, int... kOps>
constexpr std::array<KernelPointer, kBinaryOps> binary_table(
    std::integer_sequence<int, kOps...> /*ops*/) {
  return {binary_kernel<T, static_cast<BinaryOp>(kOps)>...};
}

template <class T, int... kOps>
constexpr std::array<KernelPointer, kCompareOps> compare_table(
    std::integer_sequence<int, kOps...> /*ops*/) {
  return {compare_kernel<T, static_cast<CompareOp>(kOps)>...};
}

template <class T>
KernelPointer binary_of(BinaryOp op) {
  static constexpr auto kTable = binary_table<T>(std::make_integer_sequence<int, kBinaryOps>{});
  return kTable[static_cast<std::size_t>(op)];
}

template <class T>
KernelPointer compare_of(CompareOp op) {
  static constexpr auto kTable = compare_table<T>(std::make_integer_sequence<int, kCompareOps>{});
  return kTable[static_cast<std::size_t>(op)];
}

/// The type of the elements in a block: float for the two of 16 bits.
template <class T>
using InBlocks = std::conditional_t<kIsFloating<T>, Compute<T>, T>;

KernelPointer find(BinaryOp op, DType dtype) {
  if (is_floating(dtype) ? op >= BinaryOp::bitwise_and : op == BinaryOp::atan2) {
    throw std::invalid_argument(
        "binary: bitwise operations need bool or integers, atan2 a floating type; cast first");
  }
  if (dtype == DType::boolean && (op == BinaryOp::sub || op == BinaryOp::div ||
                                  (op >= BinaryOp::pow && op <= BinaryOp::floor_divide))) {
    throw std::invalid_argument(
        "binary: bool tensors have no sub, div, pow or remainder; cast them first");
  }
  return visit(dtype, [&]<class T>(T) { return binary_of<InBlocks<T>>(op); });
}

KernelPointer find(CompareOp op, DType dtype) {
  return visit(dtype, [&]<class T>(T) {
    return compare_of<std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, InBlocks<T>>>(op);
  });
}

void run(KernelPointer kernel, std::int64_t count, const Access& a, const Access& b,
         const Access& y) {
  elementwise::run<2>(count, {a, b}, y, [&](std::int64_t n, const auto& operands, void* result) {
    kernel(n, operands[0], operands[1], result);
  });
}

/// Powers that need no logarithm. False where `value` is none of them.
bool simple_power(DType dtype, std::int64_t count, const void* a, double value, void* y) {
  if (!is_floating(dtype)) return false;
  if (value == 2.0) {
    unary(UnaryOp::square, dtype, count, a, y);
  } else if (value == 0.5) {
    unary(UnaryOp::sqrt, dtype, count, a, y);
  } else if (value == -0.5) {
    unary(UnaryOp::rsqrt, dtype, count, a, y);
  } else if (value == -1.0) {
    unary(UnaryOp::reciprocal, dtype, count, a, y);
  } else {
    return false;
  }
  return true;
}

template <class T>
void add_scaled(std::int64_t count, const void* a, const void* b, double alpha, void* y) {
  const auto* left = static_cast<const T*>(a);
  const auto* right = static_cast<const T*>(b);
  auto* out = static_cast<T*>(y);
  const auto factor = static_cast<T>(alpha);
  simd::dispatch([&](auto) __attribute__((always_inline)) {
#pragma clang loop vectorize(assume_safety)
    for (std::int64_t i = 0; i < count; ++i) {
      if constexpr (std::is_floating_point_v<T>) {
        out[i] = left[i] + factor * right[i];
      } else {
        out[i] = apply<BinaryOp::add, T>(left[i], apply<BinaryOp::mul, T>(factor, right[i]));
      }
    }
  });
}

void add_block(DType dtype, std::int64_t count, const void* a, const void* b, double alpha,
               void* y) {
  visit(dtype, [&]<class T>(T) {
    if constexpr (std::is_same_v<T, bool>) {
      throw std::invalid_argument("add: bool tensors cannot be scaled; cast them first");
    } else {
      add_scaled<InBlocks<T>>(count, a, b, alpha, y);
    }
  });
}

void run_add(DType dtype, std::int64_t count, const Access& a, const Access& b, double alpha,
             const Access& y) {
  elementwise::run<2>(count, {a, b}, y, [&](std::int64_t n, const auto& operands, void* result) {
    add_block(dtype, n, operands[0], operands[1], alpha, result);
  });
}

}  // namespace

void binary(BinaryOp op, DType dtype, std::int64_t count, const void* a, const void* b, void* y) {
  run(find(op, dtype), count, Access::contiguous(dtype, a), Access::contiguous(dtype, b),
      Access::contiguous(dtype, y));
}

void binary_scalar(BinaryOp op, DType dtype, std::int64_t count, const void* a, double value,
                   void* y, bool scalar_first) {
  if (op == BinaryOp::pow && !scalar_first && simple_power(dtype, count, a, value, y)) return;
  const Access array = Access::contiguous(dtype, a);
  const Access scalar = Access::repeated(dtype, value);
  run(find(op, dtype), count, scalar_first ? scalar : array, scalar_first ? array : scalar,
      Access::contiguous(dtype, y));
}

void binary_strided(BinaryOp op, DType dtype, Extents extents, const void* a, Extents a_strides,
                    const void* b, Extents b_strides, void* y, Extents y_strides) {
  const auto shape = elementwise::collapse<3>(extents, {a_strides, b_strides, y_strides});
  run(find(op, dtype), shape.count(), elementwise::access(dtype, a, shape, 0),
      elementwise::access(dtype, b, shape, 1), elementwise::access(dtype, y, shape, 2));
}

void compare(CompareOp op, DType dtype, std::int64_t count, const void* a, const void* b,
             std::uint8_t* y) {
  run(find(op, dtype), count, Access::contiguous(dtype, a), Access::contiguous(dtype, b),
      Access::contiguous(DType::boolean, y));
}

void compare_scalar(CompareOp op, DType dtype, std::int64_t count, const void* a, double value,
                    std::uint8_t* y) {
  run(find(op, dtype), count, Access::contiguous(dtype, a), Access::repeated(dtype, value),
      Access::contiguous(DType::boolean, y));
}

void compare_strided(CompareOp op, DType dtype, Extents extents, const void* a, Extents a_strides,
                     const void* b, Extents b_strides, std::uint8_t* y, Extents y_strides) {
  const auto shape = elementwise::collapse<3>(extents, {a_strides, b_strides, y_strides});
  run(find(op, dtype), shape.count(), elementwise::access(dtype, a, shape, 0),
      elementwise::access(dtype, b, shape, 1), elementwise::access(DType::boolean, y, shape, 2));
}

void add(DType dtype, std::int64_t count, const void* a, const void* b, double alpha, void* y) {
  run_add(dtype, count, Access::contiguous(dtype, a), Access::contiguous(dtype, b), alpha,
          Access::contiguous(dtype, y));
}

void add_strided(DType dtype, Extents extents, const void* a, Extents a_strides, const void* b,
                 Extents b_strides, double alpha, void* y, Extents y_strides) {
  const auto shape = elementwise::collapse<3>(extents, {a_strides, b_strides, y_strides});
  run_add(dtype, shape.count(), elementwise::access(dtype, a, shape, 0),
          elementwise::access(dtype, b, shape, 1), alpha, elementwise::access(dtype, y, shape, 2));
}

}  // namespace tessera::kernels
