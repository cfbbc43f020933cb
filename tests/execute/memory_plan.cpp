// Places of memories in one block: no two that are needed at once share a byte, and the block is
// not much larger than it must be.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.execute;
import tessera.program;

using namespace tessera;
using graph::MemoryPiece;
using graph::MemoryPlan;
using graph::plan_memory;

namespace {

MemoryPiece piece(std::int64_t bytes, int first, int last) {
  return {.bytes = bytes, .first = PlaceIndex(first), .last = PlaceIndex(last)};
}

/// Byte by byte, at each place of the program.
bool collides(const std::vector<MemoryPiece>& pieces, const MemoryPlan& plan, int places) {
  for (const PlaceIndex place : Indices(PlaceIndex(0), PlaceIndex(places))) {
    std::vector<bool> used(static_cast<std::size_t>(plan.bytes), false);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (place < pieces[i].first || place > pieces[i].last) {
        continue;
      }
      for (std::int64_t byte = 0; byte < pieces[i].bytes; ++byte) {
        const auto at = static_cast<std::size_t>(plan.offsets[i] + byte);
        if (at >= used.size() || used[at]) {
          return true;
        }
        used[at] = true;
      }
    }
  }
  return false;
}

/// The same packing, which compares each piece with all that have a place.
std::vector<std::int64_t> packed_by_all(const std::vector<MemoryPiece>& pieces) {
  std::vector<std::size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    return std::tuple(-pieces[a].bytes, pieces[a].first, a) <
           std::tuple(-pieces[b].bytes, pieces[b].first, b);
  });
  std::vector<std::int64_t> offsets(pieces.size(), 0);
  std::vector<std::size_t> placed;
  for (const std::size_t at : order) {
    const MemoryPiece& piece = pieces[at];
    std::ranges::sort(placed, {}, [&](std::size_t i) { return offsets[i]; });
    std::int64_t end = 0, best = -1, smallest = 0;
    for (const std::size_t i : placed) {
      const MemoryPiece& other = pieces[i];
      if (other.last < piece.first || piece.last < other.first) continue;
      const std::int64_t gap = offsets[i] - end;
      if (gap >= piece.bytes && (best < 0 || gap < smallest)) {
        best = end;
        smallest = gap;
      }
      end = std::max(end, offsets[i] + other.bytes);
    }
    offsets[at] = best >= 0 ? best : end;
    placed.push_back(at);
  }
  return offsets;
}

}  // namespace

TEST_CASE("memory that is free again is used again") {
  // A chain: each result lives until the next one was computed.
  const std::vector<MemoryPiece> chain = {piece(64, 0, 1), piece(64, 1, 2), piece(64, 2, 3),
                                          piece(64, 3, 4)};
  const MemoryPlan plan = plan_memory(chain);
  CHECK(plan.bytes == 128);
  CHECK(plan.least == 128);
  CHECK(!collides(chain, plan, 5));
}

TEST_CASE("a piece goes into the smallest gap that it fits in") {
  // At place 1 the first and the third one are gone: gaps of 384 and of 256 bytes.
  const std::vector<MemoryPiece> pieces = {piece(384, 0, 0), piece(320, 0, 1), piece(256, 0, 0),
                                           piece(192, 0, 1), piece(128, 1, 1)};
  const MemoryPlan plan = plan_memory(pieces);
  CHECK(!collides(pieces, plan, 2));
  CHECK(plan.offsets == std::vector<std::int64_t>{0, 384, 704, 960, 704});
  CHECK(plan.bytes == plan.least);
}

TEST_CASE("random lifetimes have no byte in common at any place, and places are aligned") {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    constexpr int places = 20;
    std::vector<MemoryPiece> pieces;
    const int count = 1 + static_cast<int>(random() % 30);
    for (int i = 0; i < count; ++i) {
      const int first = static_cast<int>(random() % places);
      pieces.push_back(
          piece(static_cast<std::int64_t>(random() % 300), first,
                first + static_cast<int>(random() % static_cast<unsigned>(places - first))));
    }
    const MemoryPlan plan = plan_memory(pieces, 16);
    REQUIRE(!collides(pieces, plan, places));
    REQUIRE(plan.bytes >= plan.least);
    REQUIRE(plan.bytes <= 2 * plan.least);
    for (const std::int64_t offset : plan.offsets) {
      REQUIRE(offset % 16 == 0);
    }
  }
}

TEST_CASE("pieces of a long program are where they would be if each was compared with all") {
  std::mt19937 random(3);
  for (const int places : {64, 65, 500, 3000}) {
    std::vector<MemoryPiece> pieces;
    for (int i = 0; i < 400; ++i) {
      const int first = static_cast<int>(random() % static_cast<unsigned>(places));
      const int most = i % 8 == 0 ? places : i % 2 == 0 ? 70 : 5;
      const int length = static_cast<int>(random() % static_cast<unsigned>(most));
      pieces.push_back(piece(static_cast<std::int64_t>(1 + random() % 40) * 8, first,
                             std::min(first + length, places - 1)));
    }
    CHECK(plan_memory(pieces, 8).offsets == packed_by_all(pieces));
  }
}

TEST_CASE("a piece that ends before it begins is an error") {
  const std::vector<MemoryPiece> wrong = {piece(8, 2, 1)};
  CHECK_THROWS_AS(plan_memory(wrong), Error);
}
