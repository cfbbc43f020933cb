export module tessera.data:permutation;

import tessera.base;

// A random order with random access.

export namespace tessera::data {

/// A permutation of [0, size), a function of (seed, epoch) alone. An entry is computed without the
/// others, so every rank and every resumed run has the same order without storing it.
/// docs/random-numbers.md, "Data order", defines it:
/// a Feistel network over the next even power of two with cycle walking (Black and Rogaway,
/// "Ciphers with arbitrary finite domains", 2002).
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);
  std::int64_t operator[](std::int64_t index) const;
  /// The index whose entry is `value`.
  std::int64_t index_of(std::int64_t value) const;

 private:
  static constexpr int rounds = 8;
  std::uint64_t size_;
  int half_bits_;
  std::uint64_t keys_[rounds];
};

}  // namespace tessera::data
