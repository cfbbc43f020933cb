#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Duchi et al., 2011: s += g^2 (s = initial + g^2 at the first step); p -= rate g / (sqrt(s) +
/// eps). State: s.
struct Adagrad {
  static constexpr std::size_t states = 1;
  OwnGradient gradient = {};
  double rate = 0;  // lr / (1 + (t - 1) lr_decay)
  double eps = 0;
  double initial = 0;
  bool first = false;

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const Adagrad& rule)
        : rate(static_cast<C>(rule.rate)),
          eps(static_cast<C>(rule.eps)),
          initial(static_cast<C>(rule.initial)),
          first(rule.first) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      s[0] = (first ? math::constant<V>(initial) : s[0]) + g * g;
      p = p - g * rate / (math::sqrt(s[0]) + eps);
    }

    C rate, eps, initial;
    bool first;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::AdagradStep.
template <class Settings>
Adagrad adagrad_of(const Settings& s) {
  return {.gradient = gradient_of(s),
          .rate = s.lr / (1.0 + (static_cast<double>(s.step.value) - 1) * s.lr_decay),
          .eps = s.eps,
          .initial = s.initial,
          .first = s.step == 1};
}

}  // namespace tessera::functions
