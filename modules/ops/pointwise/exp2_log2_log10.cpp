// Powers and logarithms to base 2 and 10: exp2, log2, log10. exp and log are in unary.cpp.
module;
#include <cmath>
#include <numbers>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :pointwise_call;

namespace tessera::ops {
namespace {

using namespace elementwise;
using operands::PointwiseForms;

struct Exp2 {
  template <class T>
  static T value(T x) {
    return std::exp2(x);
  }
  template <class T>
  static T slope(T x) {
    return std::numbers::ln2_v<T> * std::exp2(x);
  }
  static Tensor second(const Tensor& x) {
    return mul_scalar(exp2(x), std::numbers::ln2 * std::numbers::ln2);
  }
};

struct Log2 {
  template <class T>
  static T value(T x) {
    return std::log2(x);
  }
  template <class T>
  static T slope(T x) {
    return 1 / (x * std::numbers::ln2_v<T>);
  }
  static Tensor second(const Tensor& x) {
    return mul_scalar(pow_scalar(x, -2), -std::numbers::log2e);
  }
};

struct Log10 {
  template <class T>
  static T value(T x) {
    return std::log10(x);
  }
  template <class T>
  static T slope(T x) {
    return 1 / (x * std::numbers::ln10_v<T>);
  }
  static Tensor second(const Tensor& x) {
    return mul_scalar(pow_scalar(x, -2), -std::numbers::log10e);
  }
};

const PointwiseForms exp2_forms =
    register_unary<Exp2>("exp2", "2 to the power of x.", monotone_rule);
const PointwiseForms log2_forms = register_unary<Log2>("log2", "The logarithm to base 2.");
const PointwiseForms log10_forms = register_unary<Log10>("log10", "The logarithm to base 10.");

}  // namespace

Tensor exp2(const Tensor& x) { return call_floating(exp2_forms, x); }
Tensor log2(const Tensor& x) { return call_floating(log2_forms, x); }
Tensor log10(const Tensor& x) { return call_floating(log10_forms, x); }

}  // namespace tessera::ops
