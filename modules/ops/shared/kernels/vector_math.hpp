#pragma once
// tessera/math.hpp for the vectors of simd.hpp. Include from .cpp files only.

#include <cstddef>
#include <tessera/math.hpp>
#include <type_traits>

#include "simd_math.hpp"

namespace tessera::kernels::simd {

template <class V>
concept Lanes = !std::is_class_v<V> && requires(V v) { v[0]; } && !std::is_pointer_v<V>;

}  // namespace tessera::kernels::simd

namespace tessera::math {

template <class V>
  requires kernels::simd::Lanes<V>
struct Of<V> {
  using Scalar = std::remove_cvref_t<decltype(V{}[0])>;

  [[gnu::always_inline]] static V constant(double value) {
    return kernels::simd::splat<V>(static_cast<Scalar>(value));
  }
  [[gnu::always_inline]] static V abs(V x) { return kernels::simd::abs(x); }
  [[gnu::always_inline]] static V sqrt(V x) { return kernels::simd::sqrt(x); }
  [[gnu::always_inline]] static V exp(V x) { return kernels::simd::exp(x); }
  [[gnu::always_inline]] static V expm1(V x) { return kernels::simd::expm1(x); }
  [[gnu::always_inline]] static V log(V x) { return kernels::simd::log(x); }
  [[gnu::always_inline]] static V log1p(V x) { return kernels::simd::log1p(x); }
  [[gnu::always_inline]] static V sin(V x) { return kernels::simd::sin(x); }
  [[gnu::always_inline]] static V cos(V x) { return kernels::simd::cos(x); }
  [[gnu::always_inline]] static V tanh(V x) { return kernels::simd::tanh(x); }
  [[gnu::always_inline]] static V erf(V x) { return kernels::simd::erf(x); }
  [[gnu::always_inline]] static V sigmoid(V x) { return kernels::simd::sigmoid(x); }
  [[gnu::always_inline]] static V normal_tail(V x) { return kernels::simd::normal_tail(x); }
  [[gnu::always_inline]] static V floor(V x) { return __builtin_elementwise_floor(x); }
  [[gnu::always_inline]] static V ceil(V x) { return __builtin_elementwise_ceil(x); }
  [[gnu::always_inline]] static V round(V x) { return __builtin_elementwise_roundeven(x); }
  [[gnu::always_inline]] static V trunc(V x) { return __builtin_elementwise_trunc(x); }
  [[gnu::always_inline]] static V copy_sign(V magnitude, V sign) {
    return kernels::simd::copy_sign(magnitude, sign);
  }

  template <class F, class... More>
  [[gnu::always_inline]] static V each(F f, V x, More... more) {
    V result;
    for (std::size_t lane = 0; lane < sizeof(V) / sizeof(Scalar); ++lane) {
      result[lane] = f(x[lane], more[lane]...);
    }
    return result;
  }
};

}  // namespace tessera::math
