#pragma once
// What the kernels' tests share: reproducible values and a comparison with a scale.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "shared/kernels/types.hpp"

namespace tessera::kernels::test {

using tessera::DType;

/// `count` values in [low, high), rounded to T.
template <class T>
std::vector<T> values(std::int64_t count, unsigned seed, double low = -1.0, double high = 1.0) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<T> result(static_cast<std::size_t>(count));
  for (T& value : result) value = static_cast<T>(uniform(generator));
  return result;
}

template <class T>
std::vector<double> as_double(const std::vector<T>& x) {
  std::vector<double> result;
  result.reserve(x.size());
  for (const T& value : x) result.push_back(static_cast<double>(value));
  return result;
}

/// Half a unit in the last place of 1 in T, times a factor for sums in Compute<T>.
template <class T>
double tolerance() {
  if constexpr (std::is_same_v<T, double>) return 1e-11;
  if constexpr (std::is_same_v<T, BFloat16>) return 1.0 / 128;
  if constexpr (std::is_same_v<T, Half>) return 1.0 / 1024;
  return 1e-5;
}

/// The largest |got - expected| / (1 + |expected|); NaN where exactly one is NaN.
template <class T>
double worst(const std::vector<T>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double result = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double value = static_cast<double>(got[i]);
    if (value == expected[i] || (std::isnan(value) && std::isnan(expected[i]))) continue;
    const double difference = std::abs(value - expected[i]) / (1.0 + std::abs(expected[i]));
    if (!(difference <= result)) result = difference;
    if (std::isnan(result)) return result;
  }
  return result;
}

}  // namespace tessera::kernels::test
