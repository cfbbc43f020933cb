#include "lanes.hpp"

namespace tessera::kernels {

template <class C>
struct Lanes<Rprop, C> {
  explicit Lanes(const Rprop& rule)
      : decrease(static_cast<C>(rule.decrease)),
        increase(static_cast<C>(rule.increase)),
        smallest(static_cast<C>(rule.smallest)),
        largest(static_cast<C>(rule.largest)),
        initial(static_cast<C>(rule.initial)),
        first(rule.first) {}

  template <class V>
  [[gnu::always_inline]] void operator()(V& p, V g, V* s) const {
    const V turned = first ? V{} : g * s[0];
    const V factor = turned > 0 ? V{} + increase : (turned < 0 ? V{} + decrease : V{} + 1);
    const V size = (first ? V{} + initial : s[1]) * factor;
    s[1] = simd::minimum(V{} + largest, simd::maximum(V{} + smallest, size));
    s[0] = turned < 0 ? V{} : g;
    p = p - sign(s[0]) * s[1];
  }

  C decrease, increase, smallest, largest, initial;
  bool first;
};

template decltype(update<Rprop>) update<Rprop>;

}  // namespace tessera::kernels
