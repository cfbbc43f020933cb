#pragma once
// See update.hpp.

#include <cstddef>

#include "update.hpp"

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// Riedmiller and Braun, 1993: each element has a step size, which grows by `increase` while its
/// gradient keeps its sign, and is multiplied by `decrease` where that changes: then g = 0.
/// p -= sign(g) size. States: the last g, sizes (`initial` at the first step).
struct Rprop {
  static constexpr std::size_t states = 2;
  OwnGradient gradient = {};
  double decrease = 0;
  double increase = 0;
  double smallest = 0;
  double largest = 0;
  double initial = 0;
  bool first = false;

  /// The settings as numbers of C, and what they do with the lanes of vectors of C.
  template <class C>
  struct Lanes {
    constexpr explicit Lanes(const Rprop& rule)
        : decrease(static_cast<C>(rule.decrease)),
          increase(static_cast<C>(rule.increase)),
          smallest(static_cast<C>(rule.smallest)),
          largest(static_cast<C>(rule.largest)),
          initial(static_cast<C>(rule.initial)),
          first(rule.first) {}

    template <class V>
    constexpr void operator()(V& p, V g, V* s) const {
      const V turned = first ? V{} : g * s[0];
      const V grown = math::constant<V>(increase);
      const V shrunk = math::constant<V>(decrease);
      const V factor = turned > 0 ? grown : (turned < 0 ? shrunk : math::constant<V>(1));
      const V size = (first ? math::constant<V>(initial) : s[1]) * factor;
      s[1] = math::minimum(math::constant<V>(largest),
                           math::maximum(math::constant<V>(smallest), size));
      s[0] = turned < 0 ? V{} : g;
      p = p - math::sign(s[0]) * s[1];
    }

    C decrease, increase, smallest, largest, initial;
    bool first;
  };
};

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// From ops::RpropStep.
template <class Settings>
Rprop rprop_of(const Settings& s) {
  return {.gradient = gradient_of(s),
          .decrease = s.decrease,
          .increase = s.increase,
          .smallest = s.smallest,
          .largest = s.largest,
          .initial = s.lr,
          .first = s.step == 1};
}

}  // namespace tessera::functions
