#pragma once
// The arguments of the operators of attention and of rotary positions, for the kernels of any
// device. Included after the import of tessera.tensor.

#include <cstdint>

#include "attention/functions/rotary.hpp"

namespace tessera::ops {

/// Of causal_attention and its gradients. scale 0: 1 / sqrt(the head's dims); window 0 and softcap
/// 0: none.
struct CausalArgs {
  Dynamic<double> scale;
  std::int64_t window;
  Dynamic<double> softcap;
};

/// Of attention_block and its gradients: the same, and the positions of its first query and key.
struct BlockArgs {
  Dynamic<double> scale;
  std::int64_t window;
  Dynamic<double> softcap;
  bool is_causal;
  std::int64_t first_query;
  std::int64_t first_key;
};

/// Positions are below this: the CPU's kernel has a table of all of them.
inline constexpr std::int64_t most_positions = std::int64_t{1} << 26;

/// Of rotary and its inverse; see RotaryFrequencies.
struct RotaryArgs {
  Dynamic<double> theta;
  Dynamic<std::int64_t> offset;
  functions::RotaryFrequencies::Scaling scaling{};
  double factor{};
  double original_positions{};
  double low{};
  double high{};
  double amplitude{};
  bool whole_dims{};
  SpecArgument whole{};  // of a local call: the Spec of the tensor that it is part of
};

/// Of rotary_at and its inverse.
struct RotaryAtArgs {
  Dynamic<double> theta;
  functions::RotaryFrequencies::Scaling scaling{};
  double factor{};
  double original_positions{};
  double low{};
  double high{};
  double amplitude{};
  bool whole_dims{};
};

}  // namespace tessera::ops
