// The whole part of a number and the rest: trunc, frac. floor, ceil and round are in unary.cpp.
module;
#include <cmath>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;
using operands::PointwiseForms;

struct Trunc {
  template <class T>
  static T value(T x) {
    return std::trunc(x);
  }
  template <class T>
  static T slope(T) {
    return 0;
  }
};

struct Frac {
  template <class T>
  static T value(T x) {
    return x - std::trunc(x);
  }
  template <class T>
  static T slope(T) {
    return 1;
  }
};

const PointwiseForms trunc_forms =
    register_unary<Trunc>("trunc", "x rounded towards 0.", monotone_rule);
const PointwiseForms frac_forms = register_unary<Frac>("frac", "x - trunc(x).");

}  // namespace

Tensor trunc(const Tensor& x) { return call_rounding(trunc_forms, x); }
Tensor frac(const Tensor& x) { return call_floating(frac_forms, x); }

}  // namespace tessera::ops
