#pragma once
// See update.hpp.

#include <cstddef>
#include <cstdint>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Dozat, 2016: m and v as in Adam; p = shrink p - (gradient_rate g + moment_rate m) /
/// (root_factor sqrt(v) + eps). States: m, v.
struct NAdam {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double shrink = 1;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double gradient_rate = 0;  // lr (1 - mu_t) / (1 - mu_1 ... mu_t)
  double moment_rate = 0;    // lr mu_(t+1) / (1 - mu_1 ... mu_(t+1))
  double root_factor = 1;    // 1 / sqrt(1 - beta2^t)

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const NAdam& rule)
        : shrink(static_cast<C>(rule.shrink)),
          rest1(static_cast<C>(1.0 - rule.beta1)),
          beta2(static_cast<C>(rule.beta2)),
          rest2(static_cast<C>(1.0 - rule.beta2)),
          eps(static_cast<C>(rule.eps)),
          gradient_rate(static_cast<C>(rule.gradient_rate)),
          moment_rate(static_cast<C>(rule.moment_rate)),
          root_factor(static_cast<C>(rule.root_factor)) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      s[0] = average(s[0], g, rest1);
      s[1] = s[1] * beta2 + g * g * rest2;
      const V denominator = math::sqrt(s[1]) * root_factor + eps;
      p = p * shrink - (g * gradient_rate + s[0] * moment_rate) / denominator;
    }

    C shrink, rest1, beta2, rest2, eps, gradient_rate, moment_rate, root_factor;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// mu_step.
template <class Settings>
double momentum_of(const Settings& s, double step) {
  return s.beta1 * (1.0 - 0.5 * __builtin_pow(0.96, step * s.momentum_decay));
}

/// mu_1 ... mu_step. What is far below the rounding of 1 - product is left out, so this ends
/// after a few hundred factors.
template <class Settings>
double product_of_momenta(const Settings& s) {
  constexpr double nothing = 1e-40;
  double product = 1;
  for (std::int64_t t = 1; t <= s.step && product > nothing; ++t) {
    product *= momentum_of(s, static_cast<double>(t));
  }
  return product;
}

/// From ops::NAdamStep.
template <class Settings>
NAdam nadam_of(const Settings& s) {
  const auto step = static_cast<double>(s.step.value);
  const double mu = momentum_of(s, step);
  const double next = momentum_of(s, step + 1);
  const double product = product_of_momenta(s);
  return {.gradient = gradient_of(s, s.decoupled),
          .shrink = shrink_of(s, s.decoupled),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .gradient_rate = s.lr * (1.0 - mu) / (1.0 - product),
          .moment_rate = s.lr * next / (1.0 - product * next),
          .root_factor = 1.0 / __builtin_sqrt(1.0 - __builtin_pow(s.beta2.value, step))};
}

}  // namespace tessera::functions
