#pragma once
// Vectors of a fixed number of lanes (16 floats, 8 doubles: 64 bytes), on the compiler's vector
// extension, and `dispatch`, which compiles a body for several instruction sets and runs the best
// one. A wider vector than the machine's is several registers, so results differ between machines
// only where a multiply-add is fused. Everything here is always inlined into dispatch's body: that
// is how it gets the body's instruction set. Include from .cpp files only.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

#include "types.hpp"

// Vectors never cross a real call, so their calling convention does not matter.
#pragma clang diagnostic ignored "-Wpsabi"

namespace tessera::kernels::simd {

using F32 = float __attribute__((vector_size(64)));
using F64 = double __attribute__((vector_size(64)));
using I32 = std::int32_t __attribute__((vector_size(64)));
using U32 = std::uint32_t __attribute__((vector_size(64)));
using U16 = std::uint16_t __attribute__((vector_size(32)));
using I64 = std::int64_t __attribute__((vector_size(64)));

template <class C>
using Vector = std::conditional_t<std::is_same_v<C, double>, F64, F32>;

/// Lanes of the vector that elements of type T are computed in.
template <class T>
inline constexpr std::int64_t kLanes = std::is_same_v<T, double> ? 8 : 16;

enum class Level : std::uint8_t { base, avx2, avx512 };

#if defined(TESSERA_NATIVE_KERNELS)
/// The one level that is compiled, for the machine that compiles: the sanitizers' checks,
/// multiplied by three levels in one function each, take the compiler minutes a source.
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
inline constexpr Level kNative = Level::avx512;
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr Level kNative = Level::avx2;
#else
inline constexpr Level kNative = Level::base;
#endif
#endif

/// The best level of this machine; the environment's TESSERA_SIMD=avx2 or base holds it lower (for
/// tests).
inline Level level() {
#if defined(TESSERA_NATIVE_KERNELS)
  return kNative;
#elif defined(__x86_64__)
  static const Level best = [] {
    const char* wanted = std::getenv("TESSERA_SIMD");
    const std::string_view limit = wanted == nullptr ? "" : wanted;
    __builtin_cpu_init();
    if (limit == "base") return Level::base;
    if (limit != "avx2" && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      return Level::avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Level::avx2;
    return Level::base;
  }();
  return best;
#else
  return Level::base;
#endif
}

/// Tells a body which level it is compiled for.
template <Level level>
struct Isa {
  static constexpr Level kLevel = level;
  static constexpr bool kManyRegisters = level == Level::avx512;  // 32 of 64 bytes
};

#if !defined(TESSERA_NATIVE_KERNELS)
namespace detail {
template <class Body>
[[gnu::flatten]] void run_base(Body& body) {
  body(Isa<Level::base>{});
}
#if defined(__x86_64__)
template <class Body>
__attribute__((flatten, target("avx2,fma,bmi,bmi2,f16c"))) void run_avx2(Body& body) {
  body(Isa<Level::avx2>{});
}
template <class Body>
__attribute__((flatten, min_vector_width(512),
               target("avx2,fma,bmi,bmi2,f16c,avx512f,avx512bw,avx512dq,avx512vl"))) void
run_avx512(Body& body) {
  body(Isa<Level::avx512>{});
}
#endif
}  // namespace detail
#endif

/// Calls body(Isa<...>{}), compiled for the machine's level. What the body calls is compiled for
/// that level only if it is always_inline.
template <class Body>
void dispatch(Body&& body) {
#if defined(TESSERA_NATIVE_KERNELS)
  body(Isa<kNative>{});
#else
#if defined(__x86_64__)
  switch (level()) {
    case Level::avx512:
      return detail::run_avx512(body);
    case Level::avx2:
      return detail::run_avx2(body);
    case Level::base:
      break;
  }
#endif
  detail::run_base(body);
#endif
}

// ---- load, store, convert ----

template <class V>
[[gnu::always_inline]] inline V raw_load(const void* pointer) {
  V value;
  std::memcpy(&value, pointer, sizeof(V));
  return value;
}

template <class To, class From>
[[gnu::always_inline]] inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

template <class V>
[[gnu::always_inline]] inline V select(decltype(V{} < V{}) mask, V yes, V no) {
  return mask ? yes : no;
}

/// The value in all lanes. x - 0 is x for every x, as x + 0 is not for -0: so the compiler makes it
/// one instruction, which reads a value in memory itself.
template <class V, class S>
[[gnu::always_inline]] inline V splat(S value) {
  return static_cast<std::remove_cvref_t<decltype(V{}[0])>>(value) - V{};
}

[[gnu::always_inline]] inline F32 widen_bfloat16(U16 raw) {
  return bits_as<F32>(__builtin_convertvector(raw, U32) << 16);
}

[[gnu::always_inline]] inline U16 narrow_bfloat16(F32 value) {
  const U32 raw = bits_as<U32>(value);
  const U32 rounded = (raw + 0x7fffU + ((raw >> 16) & 1U)) >> 16;
  const U32 result = (raw & 0x7fffffffU) > 0x7f800000U ? ((raw >> 16) | 0x40U) : rounded;
  return __builtin_convertvector(result, U16);
}

// The two of Half follow the scalar conversions in half.hpp.
[[gnu::always_inline]] inline F32 widen_half(U16 raw) {
  const U32 wide = __builtin_convertvector(raw, U32);
  const U32 magnitude = (wide & 0x7fffU) << 13;
  U32 result = bits_as<U32>(bits_as<F32>(magnitude) * 0x1p112F);
  result = magnitude >= 0x0f800000U ? (result | 0x7f800000U) : result;
  return bits_as<F32>(result | ((wide & 0x8000U) << 16));
}

[[gnu::always_inline]] inline U16 narrow_half(F32 value) {
  const U32 raw = bits_as<U32>(value);
  const U32 sign = (raw >> 16) & 0x8000U;
  const U32 magnitude = raw & 0x7fffffffU;
  const U32 normal = (magnitude + 0xc8000fffU + ((magnitude >> 13) & 1U)) >> 13;
  const U32 subnormal = bits_as<U32>(bits_as<F32>(magnitude) + 0.5F) - 0x3f000000U;
  U32 result = magnitude < 0x38800000U ? subnormal : normal;
  const U32 zero = {};
  result = magnitude >= 0x47800000U ? zero + 0x7c00U : result;
  result = magnitude > 0x7f800000U ? zero + 0x7e00U : result;
  return __builtin_convertvector(result | sign, U16);
}

template <class T>
[[gnu::always_inline]] inline Vector<T> load(const T* pointer) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return widen_bfloat16(raw_load<U16>(pointer));
  } else if constexpr (std::is_same_v<T, Half>) {
    return widen_half(raw_load<U16>(pointer));
  } else {
    return raw_load<Vector<T>>(pointer);
  }
}

template <class T>
[[gnu::always_inline]] inline void store(T* pointer, Vector<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const U16 raw = narrow_bfloat16(value);
    std::memcpy(static_cast<void*>(pointer), &raw, sizeof(raw));
  } else if constexpr (std::is_same_v<T, Half>) {
    const U16 raw = narrow_half(value);
    std::memcpy(static_cast<void*>(pointer), &raw, sizeof(raw));
  } else {
    std::memcpy(pointer, &value, sizeof(value));
  }
}

/// The first `count` (< lanes) elements, and `rest` in the other lanes.
template <class T>
[[gnu::always_inline]] inline Vector<T> load_partial(const T* pointer, std::int64_t count,
                                                     Compute<T> rest = Compute<T>{0}) {
  Vector<T> value = splat<Vector<T>>(rest);
  if constexpr (std::is_same_v<T, Compute<T>>) {
    std::memcpy(&value, pointer, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (std::int64_t lane = 0; lane < count; ++lane) {
      value[lane] = static_cast<Compute<T>>(pointer[lane]);
    }
  }
  return value;
}

template <class T>
[[gnu::always_inline]] inline void store_partial(T* pointer, std::int64_t count, Vector<T> value) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    std::memcpy(pointer, &value, static_cast<std::size_t>(count) * sizeof(T));
  } else {
    for (std::int64_t lane = 0; lane < count; ++lane) pointer[lane] = static_cast<T>(value[lane]);
  }
}

/// A whole vector, or what is left of a row: for loops that treat the tail as the rest.
template <class T>
[[gnu::always_inline]] inline Vector<T> load_some(const T* pointer, std::int64_t count,
                                                  Compute<T> rest = Compute<T>{0}) {
  return count >= kLanes<T> ? load(pointer) : load_partial(pointer, count, rest);
}

template <class T>
[[gnu::always_inline]] inline void store_some(T* pointer, std::int64_t count, Vector<T> value) {
  if (count >= kLanes<T>) {
    store(pointer, value);
  } else {
    store_partial(pointer, count, value);
  }
}

// ---- arithmetic ----

// a > b ? a : b maps to the machine's instruction, which gives b where either is NaN.
template <class V>
[[gnu::always_inline]] inline V maximum(V a, V b) {
  return a > b ? a : b;
}

template <class V>
[[gnu::always_inline]] inline V minimum(V a, V b) {
  return a < b ? a : b;
}

template <class V>
[[gnu::always_inline]] inline V sqrt(V value) {
  return __builtin_elementwise_sqrt(value);
}

/// Sum of the lanes, as a tree: the upper half is added to the lower one.
[[gnu::always_inline]] inline float sum_lanes(F32 v) {
  const auto a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto b =
      __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return (b[0] + b[2]) + (b[1] + b[3]);
}

[[gnu::always_inline]] inline double sum_lanes(F64 v) {
  const auto b =
      __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
  return (b[0] + b[2]) + (b[1] + b[3]);
}

[[gnu::always_inline]] inline float max_lanes(F32 v) {
  const auto a = maximum(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                         __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  const auto b =
      maximum(__builtin_shufflevector(a, a, 0, 1, 2, 3), __builtin_shufflevector(a, a, 4, 5, 6, 7));
  const auto c = maximum(__builtin_shufflevector(b, b, 0, 1), __builtin_shufflevector(b, b, 2, 3));
  return c[0] > c[1] ? c[0] : c[1];
}

[[gnu::always_inline]] inline double max_lanes(F64 v) {
  const auto b =
      maximum(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7));
  const auto c = maximum(__builtin_shufflevector(b, b, 0, 1), __builtin_shufflevector(b, b, 2, 3));
  return c[0] > c[1] ? c[0] : c[1];
}

/// The two halves of a float vector as doubles.
struct TwoF64 {
  F64 low;
  F64 high;
};

[[gnu::always_inline]] inline TwoF64 to_double(F32 v) {
  return {
      __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), F64),
      __builtin_convertvector(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15), F64)};
}

// ---- elementary functions: F32 by polynomials, F64 by the C library lane by lane ----

template <class Function>
[[gnu::always_inline]] inline F64 each_lane(F64 value, Function function) {
  F64 result;
  for (int lane = 0; lane < 8; ++lane) result[lane] = function(value[lane]);
  return result;
}

/// Vectors of floats, also of several registers: kernels of long polynomials compute several
/// vectors as one, since a polynomial is a chain of operations that wait for each other.
template <class V>
concept Floats = std::is_same_v<std::remove_cvref_t<decltype(V{}[0])>, float>;
/// As many integers, signed as comparisons give them.
template <class V>
using Integers = decltype(V{} < V{});
template <std::int64_t kVectors>
using ManyF32 = float __attribute__((vector_size(64 * kVectors)));

/// x / log(2) rounded to an integer n, and what is left: x = n log(2) + rest, |rest| <= log(2) / 2.
/// |x| <= 2^21.
template <Floats V>
struct ReducedExponent {
  Integers<V> n;
  V rest;
};
template <Floats V>
[[gnu::always_inline]] inline ReducedExponent<V> reduce_exponent(V x) {
  constexpr float kRound = 0x1.8p23F;  // a sum with it is rounded to an integer, in its low bits
  const V shifted = x * 1.44269504088896341F + kRound;
  const V n = shifted - kRound;
  const V rest = x - n * 0.693359375F;
  return {bits_as<Integers<V>>(shifted) - 0x4b400000, rest - n * -2.12194440e-4F};
}

/// exp(r), |r| <= log(2) / 2: the polynomial of the least largest error among those that begin with
/// 1 + r, 3e-9 relative.
template <Floats V>
[[gnu::always_inline]] inline V exp_of_rest(V r) {
  V p = splat<V>(0x1.6a2430p-10F);
  p = p * r + 0x1.1239e4p-7F;
  p = p * r + 0x1.5558f2p-5F;
  p = p * r + 0x1.555492p-3F;
  p = p * r + 0x1.fffffcp-2F;
  p = p * r + 1.0F;
  return p * r + 1.0F;
}

/// 2^n for integers n in [-126, 127], by the exponent field.
template <Floats V>
[[gnu::always_inline]] inline V power_of_two(Integers<V> n) {
  return bits_as<V>((n + 127) << 23);
}

/// Natural exponential, within 1 unit in the last place; below about -103.97 zero, above 88.72
/// infinity.
template <Floats V>
[[gnu::always_inline]] inline V exp(V x) {
  // In this order NaN stays.
  const ReducedExponent<V> reduced =
      reduce_exponent(minimum(splat<V>(89.0F), maximum(splat<V>(-104.0F), x)));
  // Two factors, as 2^n alone can be too large or too small for a float.
  const Integers<V> half = reduced.n >> 1;
  return exp_of_rest(reduced.rest) * power_of_two<V>(half) * power_of_two<V>(reduced.n - half);
}

[[gnu::always_inline]] inline F64 exp(F64 x) {
  return each_lane(x, [](double lane) { return std::exp(lane); });
}

/// exp for x <= 0 (softmax) or NaN: without the second factor and the limits; 0 below -87.
template <Floats V>
[[gnu::always_inline]] inline V exp_nonpositive(V x) {
  const ReducedExponent<V> reduced = reduce_exponent(x);
  const V result = exp_of_rest(reduced.rest) * power_of_two<V>(reduced.n);
  return x < -87.0F ? V{} : result;
}

[[gnu::always_inline]] inline F64 exp_nonpositive(F64 x) { return exp(x); }

/// 1 / (1 + exp(-x)).
template <class V>
[[gnu::always_inline]] inline V sigmoid(V x) {
  return 1 / (1 + exp(-x));
}

}  // namespace tessera::kernels::simd
