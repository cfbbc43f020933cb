#pragma once
// Philox 4x32-10 for any compiler: see shared/kernels/philox.hpp, and docs/random-numbers.md.

#include <cstdint>

#pragma clang attribute push([[gnu::always_inline]], apply_to = function)

namespace tessera::functions {

/// The words of a counter, and of what Philox makes of it.
struct PhiloxWords {
  std::uint32_t word[4];
};
struct PhiloxKeyWords {
  std::uint32_t word[2];
};

/// Philox with 10 rounds.
constexpr PhiloxWords philox(PhiloxWords counter, PhiloxKeyWords key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{counter.word[0]} * 0xD2511F53U;
    const std::uint64_t p1 = std::uint64_t{counter.word[2]} * 0xCD9E8D57U;
    counter = {{static_cast<std::uint32_t>(p1 >> 32) ^ counter.word[1] ^ key.word[0],
                static_cast<std::uint32_t>(p1),
                static_cast<std::uint32_t>(p0 >> 32) ^ counter.word[3] ^ key.word[1],
                static_cast<std::uint32_t>(p0)}};
    key.word[0] += 0x9E3779B9U;  // golden ratio
    key.word[1] += 0xBB67AE85U;  // sqrt(3) - 1
  }
  return counter;
}

/// splitmix64's output function (Steele et al. 2014) of seed + stream * its increment: streams of
/// one seed are the outputs of the splitmix64 generator started there.
constexpr PhiloxKeyWords philox_key(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t mixed = seed + (stream + 1) * 0x9e3779b97f4a7c15U;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
  mixed ^= mixed >> 31;
  return {{static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)}};
}

/// The words of the numbers 4 n to 4 n + 3, for number / 4 = n.
constexpr PhiloxWords philox_block(std::uint64_t number, PhiloxKeyWords key) {
  const std::uint64_t counter = number / 4;
  return philox(
      {{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}},
      key);
}

}  // namespace tessera::functions

#pragma clang attribute pop
