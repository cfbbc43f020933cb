#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<Lion, C> {
  explicit Lanes(const Lion& rule)
      : shrink(static_cast<C>(rule.shrink)),
        rate(static_cast<C>(rule.rate)),
        rest1(static_cast<C>(1.0 - rule.beta1)),
        rest2(static_cast<C>(1.0 - rule.beta2)) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    p = p * shrink - sign(average(s[0], g, rest1)) * rate;
    s[0] = average(s[0], g, rest2);
  }

  C shrink, rate, rest1, rest2;
};

template decltype(update<Lion>) update<Lion>;

}  // namespace tessera::kernels
