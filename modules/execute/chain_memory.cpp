// Memory of a program when chains are one call each.
module;
#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :chains;

namespace tessera::graph {

Shadow shadow_of(const Program& program, std::span<const Chain> chains) {
  Shadow shadow = shadow_of(program);
  for (const Chain& chain : chains) {
    for (const Chain::Input& input : chain.inputs) {
      Memory& memory = shadow.memories[shadow.memory_of[index(input.number)]];
      memory.last = std::max(memory.last, chain.last());
    }
    for (const Chain::Output& output : chain.outputs) {
      Memory& memory = shadow.memories[shadow.memory_of[index(output.number)]];
      memory.first = output.is_made ? chain.last() : memory.first;
      memory.last = std::max(memory.last, chain.last());
    }
    for (const MemoryIndex memory : chain.inside) {
      shadow.memories[memory].inside = true;
    }
  }
  return shadow;
}

ByMemory<std::optional<MemoryIndex>> places_in_chains(std::span<const Chain> chains,
                                                      const Shadow& shadow) {
  ByMemory<std::optional<MemoryIndex>> places(shadow.memories.size());
  const auto memory_of = [&](int number) { return shadow.memory(number); };
  for (const Chain& chain : chains) {
    std::map<int, int> free;  // the last phase that reads it
    for (const Chain::Input& input : chain.inputs) {
      const Memory& memory = shadow.memories[memory_of(input.number)];
      const bool once = std::ranges::count_if(chain.inputs, [&](const Chain::Input& other) {
                          return memory_of(other.number) == memory_of(input.number);
                        }) == 1;
      if (once && input.spread == Spread::all && memory.last == chain.last() &&
          memory.first < chain.first() && !memory.is_input) {
        free.emplace(input.number, input.last_phase);
      }
    }
    for (const Chain::Output& output : chain.outputs) {
      const Tensor& made = shadow.tensors[index(output.number)];
      const MemoryIndex to = memory_of(output.number);
      if (!output.is_made) {
        continue;
      }
      places[to] = MemoryIndex();
      const Chain::Value& value = chain.values[index(output.value)];
      const bool by_elements = std::ranges::none_of(chain.calls, [&](const Chain::ChainCall& call) {
        return call.element.of_rows && call.phase == value.phase;
      });
      const auto found = std::ranges::find_if(free, [&](const auto& input) {
        const auto [number, last_phase] = input;
        const Tensor& old = shadow.tensors[index(number)];
        return value.spread == Spread::all &&
               (last_phase < value.phase || (last_phase == value.phase && by_elements)) &&
               memory_of(number) != to && old.dtype() == made.dtype() && old.offset() == 0 &&
               made.offset() == 0 &&
               shadow.memories[memory_of(number)].bytes == shadow.memories[to].bytes;
      });
      if (found != free.end()) {
        places[to] = memory_of(found->first);
        free.erase(found);
      }
    }
  }
  return places;
}

}  // namespace tessera::graph
