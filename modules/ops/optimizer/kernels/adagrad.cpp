#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<Adagrad, C> {
  explicit Lanes(const Adagrad& rule)
      : rate(static_cast<C>(rule.rate)),
        eps(static_cast<C>(rule.eps)),
        initial(static_cast<C>(rule.initial)),
        first(rule.first) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    s[0] = (first ? V{} + initial : s[0]) + g * g;
    p = p - g * rate / (simd::sqrt(s[0]) + eps);
  }

  C rate, eps, initial;
  bool first;
};

template decltype(update<Adagrad>) update<Adagrad>;

}  // namespace tessera::kernels
