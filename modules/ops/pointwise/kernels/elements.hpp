#pragma once
// Parts of generated code of neighbouring elementwise operators (Op::element): loads and
// stores of one vector, and the loop over all of them. Compiled at run time, for one instruction
// set.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tessera/math_library.hpp>
#include <type_traits>

#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/functions/comparisons.hpp"
#include "pointwise/functions/losses.hpp"
#include "pointwise/functions/unary.hpp"
#include "pointwise/functions/with_numbers.hpp"
#include "shared/kernels/vector_math.hpp"

namespace tessera::kernels {

/// Elements in row-major order, as rows of `columns`; a piece of them. As the host has it.
struct ElementRange {
  std::int64_t first_row, last_row;
  std::int64_t first_column, last_column;
  std::int64_t columns;
};

/// A vector's place; `count` of its lanes are there.
struct ElementPlace {
  std::int64_t at, row, column, count;
};

/// Calls body(whole, place) for each vector of the range; `whole`: a constant, all lanes are there.
template <class C, class Body>
[[gnu::always_inline]] inline void each_vector(const ElementRange& range, Body body) {
  constexpr std::int64_t kLanes = simd::kLanes<C>;
  for (std::int64_t row = range.first_row; row < range.last_row; ++row) {
    const std::int64_t begin = row * range.columns;
    std::int64_t column = range.first_column;
    for (; column + kLanes <= range.last_column; column += kLanes) {
      body(std::true_type{}, ElementPlace{begin + column, row, column, kLanes});
    }
    if (column < range.last_column) {
      body(std::false_type{},
           ElementPlace{begin + column, row, column, range.last_column - column});
    }
  }
}

/// The first `count` lanes of an array of 8 bits.
template <class T>
[[gnu::always_inline]] inline simd::F32 widened_float8(const T* x, std::int64_t count) {
  float wide[simd::kLanes<float>] = {};
  for (std::int64_t lane = 0; lane < count; ++lane) wide[lane] = static_cast<float>(x[lane]);
  return simd::raw_load<simd::F32>(wide);
}

template <class T>
[[gnu::always_inline]] inline void narrow_float8(T* y, std::int64_t count, simd::F32 value) {
  float wide[simd::kLanes<float>];
  std::memcpy(wide, &value, sizeof(wide));
  for (std::int64_t lane = 0; lane < count; ++lane) y[lane] = T(wide[lane]);
}

/// A boolean is 0 or 1.
[[gnu::always_inline]] inline simd::F32 widened_boolean(const bool* x, std::int64_t count) {
  std::uint8_t bytes[simd::kLanes<float>] = {};
  std::memcpy(bytes, x, static_cast<std::size_t>(count));
  using Bytes = std::uint8_t __attribute__((vector_size(sizeof(bytes))));
  Bytes packed;
  std::memcpy(&packed, bytes, sizeof(bytes));
  return __builtin_convertvector(packed, simd::F32);
}

[[gnu::always_inline]] inline void narrow_boolean(bool* y, std::int64_t count, simd::F32 value) {
  std::uint8_t bytes[simd::kLanes<float>];
  using Bytes = std::uint8_t __attribute__((vector_size(sizeof(bytes))));
  const simd::F32 ones = value != simd::F32{} ? simd::splat<simd::F32>(1) : simd::F32{};
  const Bytes packed = __builtin_convertvector(ones, Bytes);
  std::memcpy(bytes, &packed, sizeof(bytes));
  std::memcpy(y, bytes, static_cast<std::size_t>(count));
}

template <class Whole, class T>
[[gnu::always_inline]] inline simd::Vector<T> get(Whole /*whole*/, const T* x, std::int64_t at,
                                                  std::int64_t count) {
  if constexpr (kFloat8<T>) {
    return widened_float8(x + at, Whole::value ? simd::kLanes<T> : count);
  } else if constexpr (std::is_same_v<T, bool>) {
    return widened_boolean(x + at, Whole::value ? simd::kLanes<float> : count);
  } else if constexpr (Whole::value) {
    return simd::load(x + at);
  } else {
    return simd::load_partial(x + at, count);
  }
}

template <class Whole, class T>
[[gnu::always_inline]] inline void put(Whole /*whole*/, T* y, const ElementPlace& place,
                                       simd::Vector<T> value) {
  if constexpr (kFloat8<T>) {
    narrow_float8(y + place.at, Whole::value ? simd::kLanes<T> : place.count, value);
  } else if constexpr (std::is_same_v<T, bool>) {
    narrow_boolean(y + place.at, Whole::value ? simd::kLanes<float> : place.count, value);
  } else if constexpr (Whole::value) {
    simd::store(y + place.at, value);
  } else {
    simd::store_partial(y + place.at, place.count, value);
  }
}

/// One element, in all lanes.
template <class T>
[[gnu::always_inline]] inline simd::Vector<T> repeated(const T* x, std::int64_t at) {
  return simd::splat<simd::Vector<T>>(static_cast<Compute<T>>(x[at]));
}

/// The value after it was stored as T.
template <class T>
[[gnu::always_inline]] inline simd::Vector<T> rounded(simd::Vector<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return simd::widen_bfloat16(simd::narrow_bfloat16(value));
  } else if constexpr (std::is_same_v<T, Half>) {
    return simd::widen_half(simd::narrow_half(value));
  } else if constexpr (kFloat8<T>) {
    T narrow[simd::kLanes<T>];
    narrow_float8(narrow, simd::kLanes<T>, value);
    return widened_float8(narrow, simd::kLanes<T>);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != simd::F32{} ? simd::splat<simd::F32>(1) : simd::F32{};
  } else {
    return value;
  }
}

}  // namespace tessera::kernels
