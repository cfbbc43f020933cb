// Waits for collectives move down to where their results are first used.
module;
#include <algorithm>
#include <cstddef>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;

namespace tessera::graph {

/// A wait passes neither other communication, so that ranks agree on the order of all of it
/// whatever their programs are, nor the last use of what the collective reads or writes, so that
/// nothing is kept longer.
void delay_waits(Program& program, const Analysis& known) {
  const auto& [shadow, accesses] = known.state();
  PlaceIndex begin(0);
  for (Section& section : program.sections) {
    std::vector<Instruction>& all = section.instructions;
    const Indices here(begin, begin + static_cast<int>(all.size()));
    std::vector<PlaceIndex> places(here.begin(), here.end());  // in the present order
    for (std::size_t i = all.size(); i-- > 0;) {
      const Access& wait = accesses[places[i]];
      if (!wait.issued.exists()) {
        continue;
      }
      const auto stays = [&](const Access& next) {
        return next.ordered || next.issued.exists() || conflict(wait, next);
      };
      const auto is_kept = [&](PlaceIndex place) {
        const auto is_used_later = [&](MemoryIndex memory) {
          const Memory& used = shadow.memories[memory];
          return used.is_input || used.last > place;
        };
        return std::ranges::all_of(wait.reads, is_used_later) &&
               std::ranges::all_of(wait.writes, is_used_later);
      };
      std::size_t to = i;
      while (to + 1 < all.size() && !stays(accesses[places[to + 1]]) && is_kept(places[to + 1])) {
        ++to;
      }
      const auto from = static_cast<std::ptrdiff_t>(i);
      const auto end = static_cast<std::ptrdiff_t>(to + 1);
      std::rotate(all.begin() + from, all.begin() + from + 1, all.begin() + end);
      std::rotate(places.begin() + from, places.begin() + from + 1, places.begin() + end);
    }
    begin = begin + static_cast<int>(all.size());
  }
}

}  // namespace tessera::graph
