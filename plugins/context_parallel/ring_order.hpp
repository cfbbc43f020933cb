#pragma once
// Which tokens the ranks of a ring have, and which of them see which.

#include <cstdint>
#include <vector>

namespace context {

/// Some of a rank's tokens that follow one another in the sequence.
struct Piece {
  std::int64_t position;  // of the first one, in the sequence
  std::int64_t first;     // its place among the rank's tokens, in the order of the pieces
  std::int64_t length;
};

/// What a query sees of the sequence, besides its document.
struct Sight {
  bool causal = true;
  std::int64_t window = 0;  // of a causal one; 0: all earlier keys
  friend bool operator==(const Sight&, const Sight&) = default;
};

/// A sequence of `ranks` chunks. Balanced, the ranks with the same distance from both ends have
/// exchanged the second halves of their chunks, so that every rank has an early and a late piece:
/// with causal attention, all see the same number of keys, in each step of the ring.
class RingOrder {
 public:
  /// With `balance` the halves are exchanged where that helps: not if a window hides whole chunks,
  /// which then need not travel.
  RingOrder(std::int64_t ranks, std::int64_t chunk, Sight sight, bool balance);

  bool is_balanced() const { return balanced_; }
  /// How many tokens of a chunk stay on their rank.
  std::int64_t kept() const { return balanced_ ? chunk_ - chunk_ / 2 : chunk_; }
  std::vector<Piece> pieces_of(std::int64_t rank) const;
  /// Whether some query of the one sees some key of the other.
  bool sees(const Piece& queries, const Piece& keys) const;
  /// In how many steps all ranks have had the keys that they see: in step s rank r has those of
  /// rank r - s.
  std::int64_t steps() const { return steps_; }
  /// Whose keys a rank has in a step.
  std::int64_t owner(std::int64_t rank, std::int64_t step) const {
    return (rank - step + ranks_) % ranks_;
  }

 private:
  std::int64_t count_steps() const;

  std::int64_t ranks_;
  std::int64_t chunk_;
  Sight sight_;
  bool balanced_;
  std::int64_t steps_;
};

}  // namespace context
