// Which values may be kept in other memory between two uses.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :offload_plan;
import :recompute;

namespace tessera::graph {

using Kind = Instruction::Kind;

Offloads::Offloads(const Program& program, const Analysis& known, const Values& values,
                   const std::optional<OffloadRates>& rates)
    : shadow_(known.state().shadow),
      values_(values),
      rates_(rates),
      movable_(shadow_.memories.size(), false),
      flights_(shadow_.memories.size()) {
  if (!rates_) {
    return;
  }
  const ByPlace<Access>& accesses = known.state().accesses;
  for (const PlaceIndex place : accesses.keys()) {
    const Access& access = accesses[place];
    for (const std::vector<MemoryIndex>* memories : {&access.reads, &access.writes}) {
      for (std::size_t k = 0; k < memories->size() && access.completed.exists(); ++k) {
        flights_[(*memories)[k]].push_back({place, access.completed});
      }
    }
  }
  find_movable(program);
}

/// Memories that the step makes as a tensor that is all of them, and keeps until they end.
void Offloads::find_movable(const Program& program) {
  ByMemory<bool> seen(shadow_.memories.size(), false);
  for (const Instruction* i : places_of(program)) {
    for (const TensorIndex number : i->out) {
      const MemoryIndex memory = shadow_.memory(number);
      if (!memory.exists() || seen[memory]) {
        continue;
      }
      seen[memory] = true;
      const Memory& one = shadow_.memories[memory];
      movable_[memory] = !one.is_input && !one.is_output && !one.elsewhere && one.bytes > 0 &&
                         shadow_.is_all_of_memory(number);
    }
  }
  for (const Instruction* i : places_of(program)) {
    if (i->kind == Kind::release || i->kind == Kind::restore) {
      movable_[shadow_.memory(i->in[0])] = false;
    }
  }
}

OffloadIndex Offloads::find(MemoryIndex memory, PlaceIndex place) const {
  const auto found = std::ranges::find_if(all_, [&](const Offload& one) {
    return one.memory == memory && one.after < place &&
           one.contents == values_.contents_before(place, memory);
  });
  return found == all_.end() ? OffloadIndex() : all_.key_of(found);
}

bool Offloads::is_possible(MemoryIndex memory, PlaceIndex after, PlaceIndex before) const {
  return movable_[memory] && values_.contents_before(after + 1, memory).exists() &&
         std::ranges::none_of(flights_[memory], [&](const Flight& flight) {
           return flight.issued <= after && flight.completed >= before;
         });
}

OffloadIndex Offloads::add(MemoryIndex memory, PlaceIndex after) {
  return all_.add({memory, after, values_.contents_before(after + 1, memory)});
}

// A copy of few bytes costs the call, and a page.
constexpr double seconds_of_call = 1e-5;

double Offloads::store_seconds(MemoryIndex memory) const {
  return seconds_of_call + static_cast<double>(shadow_.memories[memory].bytes) / rates_->stored;
}

double Offloads::fetch_seconds(MemoryIndex memory) const {
  return seconds_of_call + static_cast<double>(shadow_.memories[memory].bytes) / rates_->fetched;
}

}  // namespace tessera::graph
