// Floating-point numbers in texts.
#pragma once
#include <cmath>
#include <limits>

namespace tessera {

/// `value` as texts show it: a NaN without its sign, which has no meaning ("nan", never "-nan").
inline double printable(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

}  // namespace tessera
