#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<Adadelta, C> {
  explicit Lanes(const Adadelta& rule)
      : rate(static_cast<C>(rule.rate)),
        rho(static_cast<C>(rule.rho)),
        rest(static_cast<C>(1.0 - rule.rho)),
        eps(static_cast<C>(rule.eps)) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    s[0] = s[0] * rho + g * g * rest;
    const V change = simd::sqrt(s[1] + eps) / simd::sqrt(s[0] + eps) * g;
    s[1] = s[1] * rho + change * change * rest;
    p = p - change * rate;
  }

  C rate, rho, rest, eps;
};

template decltype(update<Adadelta>) update<Adadelta>;

}  // namespace tessera::kernels
