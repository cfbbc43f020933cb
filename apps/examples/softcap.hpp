#pragma once
// softcap as a function of one element and of a number. The plugin computes with it, and so does
// code that Tessera compiles for neighbouring operators, which gets this file as text.
#include <tessera/math.hpp>

struct Softcap : tessera::functions::Function {
  static constexpr auto loop = tessera::functions::Loop::library;  // T is float or double

  template <class T>
  static constexpr T value(T x, T cap) {
    return cap * tessera::math::tanh(x / cap);
  }
};
