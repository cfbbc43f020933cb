#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<Sgd, C> {
  explicit Lanes(const Sgd& rule)
      : rate(static_cast<C>(rule.rate)),
        momentum(static_cast<C>(rule.momentum)),
        rest(static_cast<C>(1.0 - rule.dampening)),
        buffered(rule.momentum != 0),
        nesterov(rule.nesterov),
        first(rule.first) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    V change = g;
    if (buffered) {
      s[0] = first ? g : s[0] * momentum + g * rest;
      change = nesterov ? g + s[0] * momentum : s[0];
    }
    p = p - change * rate;
  }

  C rate, momentum, rest;
  bool buffered, nesterov, first;
};

template decltype(update<Sgd>) update<Sgd>;

}  // namespace tessera::kernels
