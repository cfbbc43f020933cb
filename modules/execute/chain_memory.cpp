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
      Memory& memory = shadow.memories[shadow.memory(input.tensor)];
      memory.last = std::max(memory.last, chain.last());
    }
    for (const Chain::Output& output : chain.outputs) {
      Memory& memory = shadow.memories[shadow.memory(output.tensor)];
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
  for (const Chain& chain : chains) {
    std::map<TensorIndex, int> free;  // the last phase that reads it
    for (const Chain::Input& input : chain.inputs) {
      const MemoryIndex from = shadow.memory(input.tensor);
      const Memory& memory = shadow.memories[from];
      const bool once = std::ranges::count_if(chain.inputs, [&](const Chain::Input& other) {
                          return shadow.memory(other.tensor) == from;
                        }) == 1;
      if (once && input.spread == Spread::all && memory.last == chain.last() &&
          memory.first < chain.first() && !memory.is_input) {
        free.emplace(input.tensor, input.last_phase);
      }
    }
    for (const Chain::Output& output : chain.outputs) {
      const Tensor& result = shadow.at(output.tensor);
      const MemoryIndex to = shadow.memory(output.tensor);
      if (!output.is_made) {
        continue;
      }
      places[to] = MemoryIndex();
      const Chain::Value& value = chain.values[output.value];
      const bool by_elements = std::ranges::none_of(chain.calls, [&](const Chain::ChainCall& call) {
        return call.element.of_rows && call.phase == value.phase;
      });
      const auto found = std::ranges::find_if(free, [&](const auto& input) {
        const auto [number, last_phase] = input;
        const Tensor& old = shadow.at(number);
        const MemoryIndex from = shadow.memory(number);
        return value.spread == Spread::all &&
               (last_phase < value.phase || (last_phase == value.phase && by_elements)) &&
               from != to && old.dtype() == result.dtype() && old.offset() == 0 &&
               result.offset() == 0 && shadow.memories[from].bytes == shadow.memories[to].bytes;
      });
      if (found != free.end()) {
        places[to] = shadow.memory(found->first);
        free.erase(found);
      }
    }
  }
  return places;
}

}  // namespace tessera::graph
