#include "ring_order.hpp"

#include <cstdint>
#include <vector>

namespace context {

RingOrder::RingOrder(std::int64_t ranks, std::int64_t chunk, Sight sight, bool balance)
    : ranks_(ranks), chunk_(chunk), sight_(sight), balanced_(false), steps_(count_steps()) {
  if (balance && sight.causal && chunk > 1 && steps_ == ranks) {
    balanced_ = true;
    steps_ = count_steps();
  }
}

std::vector<Piece> RingOrder::pieces_of(std::int64_t rank) const {
  const std::int64_t own = kept();
  std::vector<Piece> pieces{{.position = rank * chunk_, .first = 0, .length = own}};
  if (balanced_) {
    pieces.push_back(
        {.position = (ranks_ - 1 - rank) * chunk_ + own, .first = own, .length = chunk_ - own});
  }
  return pieces;
}

bool RingOrder::sees(const Piece& queries, const Piece& keys) const {
  if (!sight_.causal) {
    return true;
  }
  const std::int64_t last_query = queries.position + queries.length - 1;
  const std::int64_t last_key = keys.position + keys.length - 1;
  return keys.position <= last_query &&
         (sight_.window == 0 || last_key > queries.position - sight_.window);
}

std::int64_t RingOrder::count_steps() const {
  for (std::int64_t step = ranks_ - 1; step > 0; --step) {
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      const std::vector<Piece> keys = pieces_of(owner(rank, step));
      for (const Piece& queries : pieces_of(rank)) {
        for (const Piece& piece : keys) {
          if (sees(queries, piece)) {
            return step + 1;
          }
        }
      }
    }
  }
  return 1;
}

}  // namespace context
