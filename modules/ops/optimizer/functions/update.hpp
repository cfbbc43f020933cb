#pragma once
// Shared parts of the rules of optimizers. A rule is one step in one pass over flat arrays: p is
// the parameter, g its gradient, and the other letters of the formulas are the optimizer's state.
// Numbers that depend on the step are fields. Rule::Lanes<C> has the fields as C (float, or double
// for parameters in f64), and computes with vectors of C, or with a device's numbers: see math.hpp.
//     void operator()(V& p, V g, V* states) const;  // states that are absent are 0

#include <cstddef>
#include <tessera/math.hpp>

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// The gradient that every rule begins with: g = scale * gradient + decay * p.
struct OwnGradient {
  double scale = 1;  // clipping; negative to maximize
  double decay = 0;  // an L2 penalty
};

/// Whether a rule needs its state of this number, which else may be absent.
template <class Rule>
bool needs_state(const Rule& rule, std::size_t state) {
  if constexpr (requires { rule.needs(state); }) {
    return rule.needs(state);
  } else {
    return true;
  }
}

/// m + (x - m) (1 - beta): a moving average, as torch computes it.
template <class V, class C>
constexpr V average(V m, V x, C rest) {
  return m + (x - m) * rest;
}

}  // namespace tessera::functions

#pragma clang attribute pop

namespace tessera::functions {

/// Of settings with these fields; without a decay where that is decoupled from the gradient.
template <class Settings>
OwnGradient gradient_of(const Settings& settings, bool decoupled = false) {
  const double scale = settings.grad_scale;
  const double decay = settings.weight_decay;
  return {.scale = settings.maximize ? -scale : scale, .decay = decoupled ? 0.0 : decay};
}
/// The number that a decoupled decay multiplies the parameter by.
template <class Settings>
double shrink_of(const Settings& settings, bool decoupled = true) {
  return decoupled ? 1.0 - settings.lr * settings.weight_decay : 1.0;
}

}  // namespace tessera::functions
