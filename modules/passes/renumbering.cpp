module;
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;
import :renumbering;

namespace tessera::graph {

Renumbering::Renumbering(Program& program, const Shadow& shadow)
    : program_(program),
      shadow_(shadow),
      first_(shadow.memories.size(), -1),
      base_(shadow.memories.size(), -1),
      times_(shadow.memories.size(), 0),
      number_of_(program.tensors.size()),
      time_of_(program.tensors.size(), 0) {
  std::iota(number_of_.begin(), number_of_.end(), 0);
  for (const auto& [name, input] : program.inputs) {
    first_[memory(input.number)] = base_[memory(input.number)] = input.number;
  }
}

MemoryIndex Renumbering::memory(int number) const { return shadow_.memory(number); }

Instruction view_like(const Tensor& x, int base, int made, int scope) {
  return {.kind = Instruction::Kind::alias,
          .in = {base},
          .out = {made},
          .strides = x.strides(),
          .offset = x.offset(),
          .scope = scope};
}

int Renumbering::new_number(int like) {
  program_.tensors.push_back(program_.tensors[index(like)]);
  return static_cast<int>(program_.tensors.size()) - 1;
}

void Renumbering::renew(MemoryIndex memory, int number) {
  base_[memory] = number_of_[index(first_[memory])] = number;
  time_of_[index(first_[memory])] = ++times_[memory];
}

int Renumbering::view(int number, int base, int scope, Instructions& into) {
  // The first tensor begins where its memory does.
  const int made = new_number(number);
  into.push_back(view_like(shadow_.tensors[index(number)], base, made, scope));
  return made;
}

void Renumbering::add(Instruction instruction, Instructions& into) {
  for (const int number : instruction.in) {
    if (number >= 0 && time_of_[index(number)] != times_[memory(number)]) {
      time_of_[index(number)] = times_[memory(number)];
      number_of_[index(number)] = view(number, base_[memory(number)], instruction.scope, into);
    }
  }
  renumber(instruction, number_of_);
  for (const int number : instruction.out) {
    if (number < 0) {
      continue;
    }
    const MemoryIndex made = memory(number);
    if (first_[made] < 0) {
      first_[made] = base_[made] = number;
    }
    time_of_[index(number)] = times_[made];
  }
  into.push_back(std::move(instruction));
}

}  // namespace tessera::graph
