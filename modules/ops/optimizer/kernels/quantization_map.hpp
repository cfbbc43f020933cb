#pragma once
// The values of the codes of 8-bit state.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace tessera::kernels {

/// The values of the codes, in rising order, from -0.993 (or 0) to 1: seven decades with twice as
/// many values in each as in the one below. Source: bitsandbytes' create_dynamic_map.
using QuantizationMap = std::array<float, 256>;
inline QuantizationMap make_quantization_map(bool is_signed) {
  constexpr int decades = 7;
  QuantizationMap map{};
  std::size_t next = 0;
  for (int decade = 0; decade < decades; ++decade) {
    const int parts = is_signed ? 1 << decade : 2 << decade;
    for (int i = 0; i < parts; ++i) {
      const double mean = 0.1 + 0.9 * (i + 0.5) / parts;  // of a part of [0.1, 1]
      const auto value = static_cast<float>(std::pow(10.0, decade - decades + 1) * mean);
      map[next++] = value;
      if (is_signed) {
        map[next++] = -value;
      }
    }
  }
  map[next++] = 0;
  map[next] = 1;
  std::ranges::sort(map);
  return map;
}

}  // namespace tessera::kernels
