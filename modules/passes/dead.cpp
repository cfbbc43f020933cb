// Removes instructions whose results nothing needs.
module;
#include <cstddef>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// Needs of what remains: tensors, because it names them, and the contents of memories.
class Needs {
 public:
  Needs(const Program& program, const Analysis& known)
      : places_(places_of(program)),
        shadow_(known.state().shadow),
        accesses_(known.state().accesses),
        needed_(places_.size(), false),
        named_(program.tensors.size(), false),
        read_(shadow_.memories.size(), false),
        used_(shadow_.memories.size(), false) {
    const auto add = [&](int number) {
      name_(number);
      read_[memory(number)] = true;
    };
    for (const auto& [name, input] : program.inputs) {
      add(input.number);  // what the step leaves in it is seen
    }
    for (const auto& [name, number] : program.outputs) {
      add(number);
    }
    while (mark()) {
    }
  }

  bool needed(std::size_t place) const { return needed_[place]; }

 private:
  MemoryIndex memory(int number) const { return shadow_.memory(number); }

  void name_(int number) {
    named_[index(number)] = true;
    used_[memory(number)] = true;
  }

  /// Whether the instruction matters, as far as is known.
  bool matters(std::size_t place) const {
    const Instruction& i = *places_[place];
    const Access& access = accesses_[place];
    if (access.ordered || access.issued >= 0) {
      return true;  // other ranks take part
    }
    if (i.kind == Kind::release || i.kind == Kind::restore) {
      return used_[memory(i.in[0])];
    }
    for (const int number : i.out) {
      if (number >= 0 && named_[index(number)]) {
        return true;
      }
    }
    const bool writes = i.kind == Kind::call && i.op->in_place;
    for (const MemoryIndex written : access.writes) {
      if (writes && read_[written]) {
        return true;
      }
    }
    return false;
  }

  /// Backwards, so that most programs need one round; false when nothing was new.
  bool mark() {
    bool more = false;
    for (std::size_t place = places_.size(); place-- > 0;) {
      if (needed_[place] || !matters(place)) {
        continue;
      }
      needed_[place] = true;
      more = true;
      for (const int number : places_[place]->in) {
        if (number >= 0) {
          name_(number);
        }
      }
      for (const MemoryIndex memory : accesses_[place].reads) {
        read_[memory] = true;
      }
      if (accesses_[place].ordered) {
        for (const MemoryIndex memory : accesses_[place].writes) {
          read_[memory] = true;  // it is sent from where it is
        }
      }
    }
    return more;
  }

  std::vector<const Instruction*> places_;
  const Shadow& shadow_;
  const std::vector<Access>& accesses_;
  std::vector<bool> needed_;  // by place
  std::vector<bool> named_;   // by number
  ByMemory<bool> read_;
  ByMemory<bool> used_;
};

}  // namespace

void remove_dead(Program& program, const Analysis& known) {
  const Needs needs(program, known);
  std::size_t place = 0;
  for (Section& section : program.sections) {
    std::erase_if(section.instructions, [&](const Instruction&) { return !needs.needed(place++); });
  }
}

}  // namespace tessera::graph
