// tan, asin, acos, atan, sinh, cosh. sin, cos and tanh have kernels for vectors: unary.cpp.
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

/// a + b x^2
Tensor parabola(double a, double b, const Tensor& x) {
  return add_scalar(mul_scalar(square(x), b), a);
}

struct Tan {
  template <class T>
  static T value(T x) {
    return std::tan(x);
  }
  template <class T>
  static T slope(T x) {
    return 1 + std::tan(x) * std::tan(x);
  }
  static Tensor second(const Tensor& x) {
    const Tensor t = tan(x);
    return mul(mul_scalar(t, 2), parabola(1, 1, t));
  }
};

struct Asin {
  template <class T>
  static T value(T x) {
    return std::asin(x);
  }
  template <class T>
  static T slope(T x) {
    return 1 / std::sqrt(1 - x * x);
  }
  static Tensor second(const Tensor& x) { return mul(x, pow_scalar(parabola(1, -1, x), -1.5)); }
};

struct Acos {
  template <class T>
  static T value(T x) {
    return std::acos(x);
  }
  template <class T>
  static T slope(T x) {
    return -1 / std::sqrt(1 - x * x);
  }
  static Tensor second(const Tensor& x) { return neg(Asin::second(x)); }
};

struct Atan {
  template <class T>
  static T value(T x) {
    return std::atan(x);
  }
  template <class T>
  static T slope(T x) {
    return 1 / (1 + x * x);
  }
  static Tensor second(const Tensor& x) {
    return mul(mul_scalar(x, -2), pow_scalar(parabola(1, 1, x), -2));
  }
};

struct Sinh {
  template <class T>
  static T value(T x) {
    return std::sinh(x);
  }
  template <class T>
  static T slope(T x) {
    return std::cosh(x);
  }
  static Tensor second(const Tensor& x) { return sinh(x); }
};

struct Cosh {
  template <class T>
  static T value(T x) {
    return std::cosh(x);
  }
  template <class T>
  static T slope(T x) {
    return std::sinh(x);
  }
  static Tensor second(const Tensor& x) { return cosh(x); }
};

const PointwiseForms tan_forms = register_unary<Tan>("tan", "The tangent.");
const PointwiseForms asin_forms = register_unary<Asin>("asin", "The angle whose sine is x.");
const PointwiseForms acos_forms = register_unary<Acos>("acos", "The angle whose cosine is x.");
const PointwiseForms atan_forms =
    register_unary<Atan>("atan", "The angle whose tangent is x.", monotone_rule);
const PointwiseForms sinh_forms =
    register_unary<Sinh>("sinh", "The hyperbolic sine.", monotone_rule);
const PointwiseForms cosh_forms = register_unary<Cosh>("cosh", "The hyperbolic cosine.");

}  // namespace

Tensor tan(const Tensor& x) { return call_floating(tan_forms, x); }
Tensor asin(const Tensor& x) { return call_floating(asin_forms, x); }
Tensor acos(const Tensor& x) { return call_floating(acos_forms, x); }
Tensor atan(const Tensor& x) { return call_floating(atan_forms, x); }
Tensor sinh(const Tensor& x) { return call_floating(sinh_forms, x); }
Tensor cosh(const Tensor& x) { return call_floating(cosh_forms, x); }

}  // namespace tessera::ops
