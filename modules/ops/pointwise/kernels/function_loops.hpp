#pragma once
// The loops of functions of elements. Include from .cpp files only.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tessera/element_types.hpp>
#include <tessera/math_library.hpp>
#include <type_traits>
#include <utility>

#include "apply.hpp"
#include "convert.hpp"
#include "shared/kernels/vector_math.hpp"

namespace tessera::kernels {

// An argument of a loop is a pointer, from which it takes the element at a place, or a number.

template <class T>
[[gnu::always_inline]] inline T element(const T* from, std::int64_t at) {
  return from[at];
}
template <class T>
[[gnu::always_inline]] inline T element(T number, std::int64_t /*at*/) {
  return number;
}

template <class V, class C>
[[gnu::always_inline]] inline V lanes(const C* from, std::int64_t at) {
  return simd::raw_load<V>(from + at);
}
template <class V, class C>
[[gnu::always_inline]] inline V lanes(C number, std::int64_t /*at*/) {
  return simd::splat<V>(number);
}

template <class C>
[[gnu::always_inline]] inline simd::Vector<C> lanes_of_rest(const C* from, std::int64_t at,
                                                            std::int64_t count) {
  return simd::load_partial(from + at, count);
}
template <class C>
[[gnu::always_inline]] inline simd::Vector<C> lanes_of_rest(C number, std::int64_t /*at*/,
                                                            std::int64_t /*count*/) {
  return simd::splat<simd::Vector<C>>(number);
}

template <class F, class... T>
[[gnu::always_inline]] inline auto result_of(T... elements) {
  if constexpr (F::is_truth) {
    return static_cast<std::uint8_t>(F::holds(elements...) ? 1 : 0);
  } else {
    return F::value(elements...);
  }
}

/// By vectors, several as one.
template <class F, class C, class... Arguments>
void vector_loop(std::int64_t count, C* y, Arguments... arguments) {
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  constexpr std::int64_t kAtOnce = std::is_same_v<C, double> ? 1 : F::vectors;
  simd::dispatch([=](auto) __attribute__((always_inline)) {
    const auto compute = [=]<class V>(std::int64_t at, V) __attribute__((always_inline)) {
      const V result = F::value(lanes<V>(arguments, at)...);
      std::memcpy(y + at, &result, sizeof(V));
    };
    std::int64_t i = 0;
    if constexpr (kAtOnce > 1) {
      for (; i + kAtOnce * kLanes <= count; i += kAtOnce * kLanes)
        compute(i, simd::ManyF32<kAtOnce>{});
    }
    for (; i + kLanes <= count; i += kLanes) compute(i, simd::Vector<C>{});
    if (i < count) {
      simd::store_partial(y + i, count - i, F::value(lanes_of_rest(arguments, i, count - i)...));
    }
  });
}

/// One by one. Iterations are independent: results overlap an operand only exactly.
template <class F, class Out, class... Arguments>
[[gnu::always_inline]] inline void each_element(std::int64_t count, Out* y,
                                                Arguments... arguments) {
#pragma clang loop vectorize(assume_safety)
  for (std::int64_t i = 0; i < count; ++i) y[i] = result_of<F>(element(arguments, i)...);
}

template <class F, class Out, class... Arguments>
void element_loop(std::int64_t count, Out* y, Arguments... arguments) {
  simd::dispatch([=](auto)
                     __attribute__((always_inline)) { each_element<F>(count, y, arguments...); });
}

template <class F, class Out, class... Arguments>
void library_loop(std::int64_t count, Out* y, Arguments... arguments) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = result_of<F>(element(arguments, i)...);
}

/// A function of elements of type T as a FunctionKernel.
template <class F, class T, std::size_t N, std::size_t M>
void function_kernel(std::int64_t count, const void* const* operands, const double* numbers,
                     void* y) {
  constexpr functions::Loop kLoop = std::is_integral_v<T> ? F::integer_loop : F::loop;
  const auto run = [=](auto... arguments) {
    using Out = decltype(result_of<F>(element(arguments, 0)...));
    auto* const out = static_cast<Out*>(y);
    if constexpr (kLoop == functions::Loop::vectors) {
      vector_loop<F>(count, out, arguments...);
    } else if constexpr (kLoop == functions::Loop::elements) {
      element_loop<F>(count, out, arguments...);
    } else {
      library_loop<F>(count, out, arguments...);
    }
  };
  [&]<std::size_t... n, std::size_t... m>(std::index_sequence<n...>, std::index_sequence<m...>) {
    run(static_cast<const T*>(operands[n])..., convert<T>(numbers[m])...);
  }(std::make_index_sequence<N>{}, std::make_index_sequence<M>{});
}

/// The function for elements of type T; null: it does not take them.
template <class F, class T, std::size_t N, std::size_t M>
constexpr FunctionKernel kernel_of() {
  using functions::Takes;
  if constexpr (std::is_same_v<T, bool>) {
    if constexpr (F::takes == Takes::everything || F::takes == Takes::bits) {
      using Boolean = std::conditional_t<F::is_truth, std::uint8_t, bool>;  // vectors of bytes
      return function_kernel<F, Boolean, N, M>;
    }
  } else if constexpr (std::is_integral_v<T>) {
    if constexpr (F::takes != Takes::floating) {
      return function_kernel<F, T, N, M>;
    }
  } else if constexpr (F::takes != Takes::bits) {
    return function_kernel<F, std::conditional_t<kNarrow<T>, float, T>, N, M>;
  }
  return nullptr;
}

template <class F, std::size_t N, std::size_t M>
constexpr FunctionKernels make_kernels() {
  FunctionKernels all;
  all.is_truth = F::is_truth;
  [&]<class... T>(Types<T...>) {
    ((all.by_type[static_cast<int>(dtype_of<T>)] = kernel_of<F, T, N, M>()), ...);
  }(AllTypes{});
  return all;
}

template <class F, std::size_t N, std::size_t M>
const FunctionKernels& kernels_of() {
  static constexpr FunctionKernels kernels = make_kernels<F, N, M>();
  return kernels;
}

/// Whoever takes a function's address makes the compiler emit it.
using KernelsOf = const FunctionKernels& (*)();

}  // namespace tessera::kernels
