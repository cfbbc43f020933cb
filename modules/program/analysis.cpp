module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.tensor;
import :accesses;
import :analysis;
import :analysis_state;
import :shadow;

namespace tessera::graph {
namespace {

/// The arguments that values depend on: ranks only compare the `identity` of a collective.
std::string arguments_of_values(const Op& op, const Attributes& attributes) {
  const auto is_identity = [](const ArgumentField& field) { return field.name == "identity"; };
  if (op.communicates == Communicates::none || op.arguments == nullptr ||
      std::ranges::none_of(op.arguments->fields, is_identity)) {
    return print_arguments(op, attributes);
  }
  std::vector<ArgumentValue> values = op.arguments->values(attributes);
  for (std::size_t k = 0; k < values.size(); ++k) {
    if (is_identity(op.arguments->fields[k])) {
      values[k] = std::int64_t{0};
    }
  }
  return print_arguments(op, op.arguments->from_values(values));
}

}  // namespace

bool works_by_place(const Op& op) {  // as the schema says of in-place operators of lists
  return op.in_place && op.counts.single == 0 && op.counts.lists > 0;
}

std::string call_in_words(const Instruction& i) {
  std::string text = fmt::format("{}({}", i.op->name, arguments_of_values(*i.op, i.attributes));
  for (const Binding& b : i.bindings) {
    text += fmt::format(" {}=${}", b.field, to_text(b));
  }
  return text;
}

Analysis::Analysis(const Program& program) : state_(std::make_unique<State>()) {
  state_->shadow = shadow_of(program);
  state_->accesses = accesses_of(program, state_->shadow);
}

Analysis::~Analysis() = default;

int Analysis::places() const { return state_->shadow.end().number; }

int Analysis::memories() const { return static_cast<int>(state_->shadow.memories.size()); }

MemoryIndex Analysis::memory_of(TensorIndex tensor) const { return state_->shadow.memory(tensor); }

bool Analysis::is_shared(MemoryIndex memory) const {
  const Memory& one = state_->shadow.memories[memory];
  return one.is_input || one.is_output;
}

std::int64_t Analysis::bytes_of(MemoryIndex memory) const {
  return state_->shadow.memories[memory].bytes;
}

std::span<const MemoryIndex> Analysis::reads(PlaceIndex place) const {
  return state_->accesses[place].reads;
}

std::span<const MemoryIndex> Analysis::writes(PlaceIndex place) const {
  return state_->accesses[place].writes;
}

bool Analysis::is_ordered(PlaceIndex place) const { return state_->accesses[place].ordered; }

PlaceIndex Analysis::partner(PlaceIndex place) const { return state_->shadow.partners[place]; }

bool Analysis::conflict(PlaceIndex place, PlaceIndex other) const {
  return graph::conflict(state_->accesses[place], state_->accesses[other]);
}

ByMemory<std::vector<PlaceIndex>> uses_of(const Program& program, const Analysis& known) {
  const auto& [shadow, accesses] = known.state();
  const ByPlace<const Instruction*> instructions = places_of(program);
  ByMemory<std::vector<PlaceIndex>> all(shadow.memories.size());
  for (const PlaceIndex place : instructions.keys()) {
    const auto use = [&](MemoryIndex memory) {
      if (memory.exists() && (all[memory].empty() || all[memory].back() != place)) {
        all[memory].push_back(place);
      }
    };
    for (const auto* numbers : {&instructions[place]->in, &instructions[place]->out}) {
      std::ranges::for_each(*numbers, [&](TensorIndex number) { use(shadow.memory(number)); });
    }
    std::ranges::for_each(accesses[place].reads, use);  // also of what is in flight
    std::ranges::for_each(accesses[place].writes, use);
  }
  return all;
}

std::int64_t Analysis::peak_bytes() const { return graph::peak_bytes(state_->shadow); }

}  // namespace tessera::graph
