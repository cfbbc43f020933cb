#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<RAdam, C> {
  explicit Lanes(const RAdam& rule)
      : shrink(static_cast<C>(rule.shrink)),
        rest1(static_cast<C>(1.0 - rule.beta1)),
        beta2(static_cast<C>(rule.beta2)),
        rest2(static_cast<C>(1.0 - rule.beta2)),
        eps(static_cast<C>(rule.eps)),
        rate(static_cast<C>(rule.rate)),
        adaptive(rule.adaptive) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    s[0] = average(s[0], g, rest1);
    s[1] = s[1] * beta2 + g * g * rest2;
    const V change = s[0] * rate;
    p = p * shrink - (adaptive ? change / (simd::sqrt(s[1]) + eps) : change);
  }

  C shrink, rest1, beta2, rest2, eps, rate;
  bool adaptive;
};

template decltype(update<RAdam>) update<RAdam>;

}  // namespace tessera::kernels
