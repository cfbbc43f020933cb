#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<Asgd, C> {
  explicit Lanes(const Asgd& rule)
      : shrink(static_cast<C>(rule.shrink)),
        rate(static_cast<C>(rule.rate)),
        weight(static_cast<C>(rule.weight)),
        whole(rule.weight == 1) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    p = p * shrink - g * rate;
    s[0] = whole ? p : s[0] + (p - s[0]) * weight;
  }

  C shrink, rate, weight;
  bool whole;
};

template decltype(update<Asgd>) update<Asgd>;

}  // namespace tessera::kernels
