module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :facts;
import :headroom;

namespace tessera::graph {

Headroom::Headroom(ProgramFacts& facts)
    : facts_(facts), live_(needed_bytes(facts.shadow)), peak_(std::ranges::max(live_)) {}

void Headroom::add(PlaceIndex first, PlaceIndex last, std::int64_t bytes) {
  for (const PlaceIndex place : Indices(first, last + 1)) {
    live_[place] += bytes;
  }
}

bool Headroom::has(const std::vector<TensorIndex>& results, PlaceIndex place) const {
  PlaceIndex begin = place;
  for (const TensorIndex number : results) {
    begin = std::min(begin, facts_.last[facts_.shadow.memory(number)] + 1);
  }
  for (const PlaceIndex between : Indices(begin, place)) {
    std::int64_t more = 0;
    for (const TensorIndex number : results) {
      const MemoryIndex memory = facts_.shadow.memory(number);
      more += facts_.last[memory] < between ? facts_.shadow.memories[memory].bytes : 0;
    }
    if (more > 0 && live_[between] + more > peak_) {
      return false;
    }
  }
  return true;
}

void Headroom::keep(const std::vector<TensorIndex>& results, const std::vector<TensorIndex>& spared,
                    PlaceIndex place) {
  for (std::size_t k = 0; k < results.size(); ++k) {
    PlaceIndex& end = facts_.last[facts_.shadow.memory(results[k])];
    const MemoryIndex not_made = facts_.shadow.memory(spared[k]);
    const Memory& one = facts_.shadow.memories[not_made];
    add(end + 1, place - 1, one.bytes);
    add(one.first, facts_.last[not_made], -one.bytes);
    add(std::max(end + 1, place), facts_.last[not_made], one.bytes);
    end = std::max(end, facts_.last[not_made]);
  }
}

}  // namespace tessera::graph
