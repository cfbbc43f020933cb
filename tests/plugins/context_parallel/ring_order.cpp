// The order of a ring: every query meets every key that it sees, in as few steps as possible, and
// balanced ranks have the same work.
#include "../../../plugins/context_parallel/ring_order.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "catch.hpp"

using context::Piece;
using context::RingOrder;
using context::Sight;

namespace {

bool sees(const Sight& sight, std::int64_t query, std::int64_t key) {
  return !sight.causal || (key <= query && (sight.window == 0 || key > query - sight.window));
}

/// How many pairs of a query and a key the pieces have that see each other.
std::int64_t pairs_of(const Sight& sight, const Piece& queries, const Piece& keys) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < queries.length; ++i) {
    for (std::int64_t j = 0; j < keys.length; ++j) {
      count += sees(sight, queries.position + i, keys.position + j) ? 1 : 0;
    }
  }
  return count;
}

/// The pairs of each rank in each step.
std::vector<std::vector<std::int64_t>> work_of(const RingOrder& order, const Sight& sight,
                                               std::int64_t ranks) {
  std::vector<std::vector<std::int64_t>> work;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    work.emplace_back();
    for (std::int64_t step = 0; step < order.steps(); ++step) {
      std::int64_t pairs = 0;
      for (const Piece& queries : order.pieces_of(rank)) {
        for (const Piece& keys : order.pieces_of(order.owner(rank, step))) {
          const std::int64_t found = pairs_of(sight, queries, keys);
          CHECK(order.sees(queries, keys) == (found > 0));
          pairs += found;
        }
      }
      work.back().push_back(pairs);
    }
  }
  return work;
}

std::int64_t all_pairs(const Sight& sight, std::int64_t tokens) {
  return pairs_of(sight, {0, 0, tokens}, {0, 0, tokens});
}

}  // namespace

TEST_CASE("the pieces of a ring are the sequence, and every pair meets once") {
  for (const std::int64_t ranks : {1, 2, 3, 4, 7}) {
    for (const std::int64_t chunk : {1, 2, 5, 8}) {
      for (const Sight& sight : {Sight{}, Sight{.causal = false}, Sight{.window = 1},
                                 Sight{.window = 4}, Sight{.window = 9}, Sight{.window = 1000}}) {
        for (const bool balance : {false, true}) {
          INFO(ranks << " ranks, " << chunk << " tokens, window " << sight.window);
          const RingOrder order(ranks, chunk, sight, balance);
          std::set<std::int64_t> positions;
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            std::int64_t first = 0;
            for (const Piece& piece : order.pieces_of(rank)) {
              CHECK(piece.first == first);
              first += piece.length;
              for (std::int64_t i = 0; i < piece.length; ++i) {
                positions.insert(piece.position + i);
              }
            }
            CHECK(first == chunk);
          }
          CHECK(static_cast<std::int64_t>(positions.size()) == ranks * chunk);
          CHECK(*positions.rbegin() == ranks * chunk - 1);
          std::int64_t met = 0;
          for (const std::vector<std::int64_t>& steps : work_of(order, sight, ranks)) {
            for (const std::int64_t pairs : steps) {
              met += pairs;
            }
          }
          CHECK(met == all_pairs(sight, ranks * chunk));
        }
      }
    }
  }
}

TEST_CASE("keys move no further than somebody sees them") {
  CHECK(RingOrder(4, 8, {}, true).steps() == 4);
  CHECK(RingOrder(4, 8, {.causal = false}, true).steps() == 4);
  CHECK(RingOrder(4, 8, {.window = 1}, true).steps() == 1);
  CHECK(RingOrder(4, 8, {.window = 2}, true).steps() == 2);
  CHECK(RingOrder(4, 8, {.window = 9}, true).steps() == 2);
  CHECK(RingOrder(4, 8, {.window = 10}, true).steps() == 3);
  CHECK_FALSE(RingOrder(4, 8, {.window = 10}, true).is_balanced());
  CHECK(RingOrder(4, 8, {.window = 30}, true).is_balanced());
  CHECK_FALSE(RingOrder(4, 8, {.causal = false}, true).is_balanced());
}

TEST_CASE("ranks of a balanced ring have the same work in every step") {
  for (const std::int64_t ranks : {2, 3, 4, 8}) {
    const Sight sight;
    const RingOrder order(ranks, 6, sight, true);
    const std::vector<std::vector<std::int64_t>> work = work_of(order, sight, ranks);
    for (const std::vector<std::int64_t>& steps : work) {
      CHECK(steps == work[0]);
    }
    const auto most = [&](const RingOrder& of) {
      std::int64_t largest = 0;
      for (const std::vector<std::int64_t>& steps : work_of(of, sight, ranks)) {
        std::int64_t sum = 0;
        for (const std::int64_t pairs : steps) {
          sum += pairs;
        }
        largest = std::max(largest, sum);
      }
      return largest;
    };
    CHECK(most(order) * ranks == all_pairs(sight, ranks * 6));
    CHECK(most(RingOrder(ranks, 6, sight, false)) > most(order));
  }
}
