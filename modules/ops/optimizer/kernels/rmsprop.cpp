#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<RMSprop, C> {
  explicit Lanes(const RMSprop& rule)
      : rate(static_cast<C>(rule.rate)),
        alpha(static_cast<C>(rule.alpha)),
        rest(static_cast<C>(1.0 - rule.alpha)),
        eps(static_cast<C>(rule.eps)),
        momentum(static_cast<C>(rule.momentum)),
        buffered(rule.momentum != 0),
        centered(rule.centered) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    s[0] = s[0] * alpha + g * g * rest;
    V variance = s[0];
    if (centered) {
      s[2] = average(s[2], g, rest);
      variance = s[0] - s[2] * s[2];
      variance = variance < 0 ? V{} : variance;  // by rounding; NaN stays
    }
    V change = g / (simd::sqrt(variance) + eps);
    if (buffered) {
      s[1] = s[1] * momentum + change;
      change = s[1];
    }
    p = p - change * rate;
  }

  C rate, alpha, rest, eps, momentum;
  bool buffered, centered;
};

template decltype(update<RMSprop>) update<RMSprop>;

}  // namespace tessera::kernels
