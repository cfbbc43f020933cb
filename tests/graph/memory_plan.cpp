// Places of memories in one block: no two that are needed at once share a byte, and the block is
// not much larger than it must be.
#include <cstddef>
#include <cstdint>
#include <random>
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

TEST_CASE("a piece that ends before it begins is an error") {
  const std::vector<MemoryPiece> wrong = {piece(8, 2, 1)};
  CHECK_THROWS_AS(plan_memory(wrong), Error);
}
