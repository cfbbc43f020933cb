#pragma once
// The functions that rotary_frequency asks for, of the host.

#include <cmath>

namespace tessera::functions {

struct HostMath {
  static double pow(double x, double exponent) { return std::pow(x, exponent); }
  static double log(double x) { return std::log(x); }
  static double floor(double x) { return std::floor(x); }
  static double ceil(double x) { return std::ceil(x); }
};

}  // namespace tessera::functions
