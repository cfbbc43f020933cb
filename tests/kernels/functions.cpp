// The structures of functions of elements: with numbers, with vectors and with a type of one's own.

#include <cmath>
#include <tessera/math_library.hpp>
#include <vector>

#include "check.hpp"
#include "pointwise/functions/unary.hpp"
#include "pointwise/functions/with_numbers.hpp"
#include "pointwise/kernels/apply.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;
using namespace tessera::functions;

namespace {

/// Calls visit.operator()<F>() for each function of the list.
template <class Visit, class... F>
void each_function(List<F...> /*all*/, Visit visit) {
  (visit.template operator()<F>(), ...);
}

/// What a device's number might be: a class with its own functions.
struct OwnNumber {
  double value = 0;

  friend OwnNumber operator-(OwnNumber a, OwnNumber b) { return {a.value - b.value}; }
  friend OwnNumber operator*(OwnNumber a, OwnNumber b) { return {a.value * b.value}; }
  friend bool operator>(OwnNumber a, OwnNumber b) { return a.value > b.value; }

  struct Math {
    static OwnNumber constant(double value) { return {value}; }
    static OwnNumber exp(OwnNumber x) { return {std::exp(x.value)}; }
    static OwnNumber tanh(OwnNumber x) { return {std::tanh(x.value)}; }
    static OwnNumber sigmoid(OwnNumber x) { return {1 / (1 + std::exp(-x.value))}; }
  };

  OwnNumber() = default;
  OwnNumber(double v) : value(v) {}  // NOLINT(google-explicit-constructor)
};

}  // namespace

TEST_CASE("a function's second derivative is the limit of its slope's differences", "[functions]") {
  int compared = 0;
  each_function(UnaryFunctions{}, [&]<class F>() {
    if constexpr (!F::linear) {
      CAPTURE(F::name);
      for (const double x : {0.15, 0.35, 0.6, 0.85}) {  // where all of them are smooth
        constexpr double step = 1e-5;
        const double difference = (F::slope(x + step) - F::slope(x - step)) / (2 * step);
        double second = 0;
        if constexpr (requires { F::second(x); }) second = F::second(x);
        CHECK(std::abs(second - difference) < 1e-7 * (1 + std::abs(difference)));
        ++compared;
      }
    }
  });
  CHECK(compared == 4 * 35);
}

TEST_CASE("a function of the C library has the same bits in kernels as number by number",
          "[functions]") {
  // 0.1 and the like: products of which have digits that a fused addition would keep.
  const auto x = values<float>(3001, 3, 0.05, 0.95);
  const auto grad = values<float>(3001, 4, -2, 2);
  const auto n = static_cast<std::int64_t>(x.size());
  int checked = 0;
  each_function(UnaryFunctions{}, [&]<class F>() {
    if constexpr (F::loop == Loop::library) {
      CAPTURE(F::name);
      std::vector<float> y(x.size()), dx(x.size());
      unary<F>(DType::f32, n, x.data(), y.data());
      apply(kernels_of<GradientOf<F>, 2>(), DType::f32, n, {{x.data(), grad.data()}}, {},
            dx.data());
      bool same = true;
      for (std::size_t i = 0; i < x.size(); ++i) {
        same = same && y[i] == F::value(x[i]) && dx[i] == GradientOf<F>::value(x[i], grad[i]);
      }
      CHECK(same);
      ++checked;
    }
  });
  CHECK(checked == 11);
}

TEST_CASE("a function computes with any type that has what it calls", "[functions]") {
  // The compiler may compute a function of a known number itself, with another last bit.
  const auto near = [](double expected) { return Approx(expected).epsilon(1e-14); };
  for (const double x : {-1.5, -0.2, 0.4, 2.0}) {
    CHECK(Silu::value(OwnNumber(x)).value == near(Silu::value(x)));
    CHECK(Tanh::slope(OwnNumber(x)).value == near(Tanh::slope(x)));
    CHECK(GradientOf<Sigmoid>::value(OwnNumber(x), OwnNumber(3)).value ==
          near(GradientOf<Sigmoid>::value(x, 3.0)));
    CHECK(LeakyRelu::value(OwnNumber(x), OwnNumber(0.1)).value == near(LeakyRelu::value(x, 0.1)));
  }
}

TEST_CASE("a type that a function does not take is refused", "[functions]") {
  std::int64_t x = 3;
  std::uint8_t flag = 1;
  CHECK_THROWS_AS(unary<Exp>(DType::i64, 1, &x, &x), std::invalid_argument);
  CHECK_THROWS_AS(unary<Neg>(DType::boolean, 1, &flag, &flag), std::invalid_argument);
  CHECK_THROWS_AS(unary<Neg>(DType::f8e4m3, 1, &flag, &flag), std::invalid_argument);
}
