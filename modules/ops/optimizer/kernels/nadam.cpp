#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<NAdam, C> {
  explicit Lanes(const NAdam& rule)
      : shrink(static_cast<C>(rule.shrink)),
        rest1(static_cast<C>(1.0 - rule.beta1)),
        beta2(static_cast<C>(rule.beta2)),
        rest2(static_cast<C>(1.0 - rule.beta2)),
        eps(static_cast<C>(rule.eps)),
        gradient_rate(static_cast<C>(rule.gradient_rate)),
        moment_rate(static_cast<C>(rule.moment_rate)),
        root_factor(static_cast<C>(rule.root_factor)) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    s[0] = average(s[0], g, rest1);
    s[1] = s[1] * beta2 + g * g * rest2;
    const V denominator = simd::sqrt(s[1]) * root_factor + eps;
    p = p * shrink - (g * gradient_rate + s[0] * moment_rate) / denominator;
  }

  C shrink, rest1, beta2, rest2, eps, gradient_rate, moment_rate, root_factor;
};

template decltype(update<NAdam>) update<NAdam>;

}  // namespace tessera::kernels
