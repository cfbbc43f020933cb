#pragma once
// Frequencies of rotary positions. For any compiler: the caller gives the functions of a double.

#include <cstdint>

namespace tessera::functions {

/// Angle per position of each pair of elements: theta^(-i / h) for pair i of h, and how that
/// changes for long sequences (see ops::RotaryScaling).
struct RotaryFrequencies {
  enum class Scaling : std::uint8_t { none, linear, llama3, yarn };
  double theta = 10000.0;
  Scaling scaling = Scaling::none;
  double factor = 1;
  double original_positions = 0;
  double low = 1;
  double high = 4;
  double amplitude = 1;  // of cosines and sines
  bool whole_dims = true;
};

/// From the arguments of a rotary operator, whose enumeration of scalings is in this order. Without
/// a scaling its other numbers are not looked at.
template <class Args>
RotaryFrequencies frequencies_of(const Args& arguments) {
  RotaryFrequencies to = {.theta = arguments.theta};
  to.scaling = static_cast<RotaryFrequencies::Scaling>(arguments.scaling);
  if (to.scaling != RotaryFrequencies::Scaling::none) {
    to.factor = arguments.factor;
    to.original_positions = arguments.original_positions;
    to.low = arguments.low;
    to.high = arguments.high;
    to.amplitude = arguments.amplitude;
    to.whole_dims = arguments.whole_dims;
  }
  return to;
}

inline constexpr double two_pi = 2 * 3.14159265358979323846;

/// The pair that turns `turns` times within the sequences of pretraining, as a real number.
template <class Math>
constexpr double pair_of_turns(const RotaryFrequencies& of, double half, double turns) {
  return half * Math::log(of.original_positions / (turns * two_pi)) / Math::log(of.theta);
}

/// How much of a frequency is divided: 0 at a share of 0 or less, 1 at 1 or more.
constexpr double divided(double frequency, double factor, double share) {
  const double part = share < 0 ? 0 : share > 1 ? 1 : share;
  return frequency / factor * part + frequency * (1 - part);
}

/// Frequency of pair i of `half`, with pow, log, floor and ceil of Math. Sources: transformers'
/// modeling_rope_utils for llama3 and yarn.
template <class Math>
constexpr double rotary_frequency(const RotaryFrequencies& of, std::int64_t half, std::int64_t i) {
  const auto pairs = static_cast<double>(half);
  const double frequency = Math::pow(of.theta, -static_cast<double>(i) / pairs);
  if (of.scaling == RotaryFrequencies::Scaling::none) {
    return frequency;
  }
  if (of.scaling == RotaryFrequencies::Scaling::linear) {
    return frequency / of.factor;
  }
  if (of.scaling == RotaryFrequencies::Scaling::llama3) {
    const double turns = of.original_positions * frequency / two_pi;
    return divided(frequency, of.factor, (of.high - turns) / (of.high - of.low));
  }
  double first = pair_of_turns<Math>(of, pairs, of.high);
  double last = pair_of_turns<Math>(of, pairs, of.low);
  if (of.whole_dims) {
    first = Math::floor(first);
    last = Math::ceil(last);
  }
  first = first < 0 ? 0 : first;
  last = last > 2 * pairs - 1 ? 2 * pairs - 1 : last;
  const double width = last == first ? 0.001 : last - first;
  return divided(frequency, of.factor, (static_cast<double>(i) - first) / width);
}

}  // namespace tessera::functions
