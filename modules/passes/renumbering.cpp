module;
#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :renumbering;

namespace tessera::graph {
namespace {

/// Each tensor itself.
ByTensor<TensorIndex> all_of(const Program& program) {
  ByTensor<TensorIndex> all;
  std::ranges::for_each(program.tensors.keys(), [&](TensorIndex number) { all.add(number); });
  return all;
}

void renumber(Instruction& instruction, const ByTensor<TensorIndex>& number_of) {
  for (TensorIndex& number : instruction.in) {
    number = number.exists() ? number_of[number] : number;
  }
}

}  // namespace

Replacement::Replacement(const Program& program)
    : instead_(all_of(program)), removed_(places_of(program).size(), false) {}

void Replacement::apply(Program& program) const {
  PlaceIndex place(0);
  for (Section& section : program.sections) {
    for (Instruction& i : section.instructions) {
      renumber(i, instead_);
    }
    std::erase_if(section.instructions, [&](const Instruction&) {
      const bool removed = removed_[place];
      ++place;
      return removed;
    });
  }
  for (auto& [name, number] : program.outputs) {
    number = instead_[number];
  }
}

Renumbering::Renumbering(Program& program, const Shadow& shadow)
    : program_(program),
      shadow_(shadow),
      first_(shadow.memories.size()),
      base_(shadow.memories.size()),
      times_(shadow.memories.size(), 0),
      number_of_(all_of(program)),
      time_of_(program.tensors.size(), 0) {
  for (const auto& [name, input] : program.inputs) {
    first_[memory(input.tensor)] = base_[memory(input.tensor)] = input.tensor;
  }
}

MemoryIndex Renumbering::memory(TensorIndex number) const { return shadow_.memory(number); }

Instruction view_like(const Tensor& x, TensorIndex base, TensorIndex made, ScopeIndex scope) {
  return {.kind = Instruction::Kind::alias,
          .in = {base},
          .out = {made},
          .strides = x.strides(),
          .offset = x.offset(),
          .scope = scope};
}

TensorIndex Renumbering::new_number(TensorIndex like) {
  return program_.tensors.add(program_.tensors[like]);
}

void Renumbering::renew(MemoryIndex memory, TensorIndex number) {
  base_[memory] = number_of_[first_[memory]] = number;
  time_of_[first_[memory]] = ++times_[memory];
}

TensorIndex Renumbering::view(TensorIndex number, TensorIndex base, ScopeIndex scope,
                              Instructions& into) {
  // The first tensor begins where its memory does.
  const TensorIndex made = new_number(number);
  into.push_back(view_like(shadow_.at(number), base, made, scope));
  return made;
}

void Renumbering::add(Instruction instruction, Instructions& into) {
  for (const TensorIndex number : instruction.in) {
    if (number.exists() && time_of_[number] != times_[memory(number)]) {
      time_of_[number] = times_[memory(number)];
      number_of_[number] = view(number, base_[memory(number)], instruction.scope, into);
    }
  }
  renumber(instruction, number_of_);
  for (const TensorIndex number : instruction.out) {
    if (!number.exists()) {
      continue;
    }
    const MemoryIndex made = memory(number);
    if (!first_[made].exists()) {
      first_[made] = base_[made] = number;
    }
    time_of_[number] = times_[made];
  }
  into.push_back(std::move(instruction));
}

}  // namespace tessera::graph
