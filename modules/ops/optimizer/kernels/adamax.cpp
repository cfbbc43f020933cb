#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<Adamax, C> {
  explicit Lanes(const Adamax& rule)
      : rest1(static_cast<C>(1.0 - rule.beta1)),
        beta2(static_cast<C>(rule.beta2)),
        eps(static_cast<C>(rule.eps)),
        step_size(static_cast<C>(rule.step_size)) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    s[0] = average(s[0], g, rest1);
    s[1] = simd::maximum(s[1] * beta2, (g < 0 ? -g : g) + eps);
    p = p - s[0] * step_size / s[1];
  }

  C rest1, beta2, eps, step_size;
};

template decltype(update<Adamax>) update<Adamax>;

}  // namespace tessera::kernels
