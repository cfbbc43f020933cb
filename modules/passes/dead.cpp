// Removes instructions whose results nothing needs.
module;
#include <cstddef>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :builtin;
import :renumbering;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// Needs of what remains: tensors, because it names them, and the contents of memories.
class LiveValues {
 public:
  LiveValues(const Program& program, const Analysis& known)
      : places_(places_of(program)),
        shadow_(known.state().shadow),
        accesses_(known.state().accesses),
        needed_(places_.size(), false),
        named_(program.tensors.size(), false),
        read_(shadow_.memories.size(), false),
        used_(shadow_.memories.size(), false) {
    const auto add = [&](TensorIndex number) {
      name_(number);
      read_[memory(number)] = true;
    };
    for (const auto& [name, input] : program.inputs) {
      add(input.tensor);  // what the step leaves in it is seen
    }
    for (const auto& [name, number] : program.outputs) {
      add(number);
    }
    while (mark()) {
    }
  }

  bool needed(PlaceIndex place) const { return needed_[place]; }

 private:
  MemoryIndex memory(TensorIndex number) const { return shadow_.memory(number); }

  void name_(TensorIndex number) {
    named_[number] = true;
    used_[memory(number)] = true;
  }

  /// Whether the instruction matters, as far as is known.
  bool matters(PlaceIndex place) const {
    const Instruction& i = *places_[place];
    const Access& access = accesses_[place];
    if (access.ordered || access.issued.exists()) {
      return true;  // other ranks take part
    }
    if (i.kind == Kind::release || i.kind == Kind::restore) {
      return used_[memory(i.in[0])];
    }
    for (const TensorIndex number : i.out) {
      if (number.exists() && named_[number]) {
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
    for (PlaceIndex place = places_.last(); place.exists(); --place) {
      if (needed_[place] || !matters(place)) {
        continue;
      }
      needed_[place] = true;
      more = true;
      for (const TensorIndex number : places_[place]->in) {
        if (number.exists()) {
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

  ByPlace<const Instruction*> places_;
  const Shadow& shadow_;
  const ByPlace<Access>& accesses_;
  ByPlace<bool> needed_;
  ByTensor<bool> named_;
  ByMemory<bool> read_;
  ByMemory<bool> used_;
};

}  // namespace

void remove_dead(Program& program, const Analysis& known) {
  const LiveValues needs(program, known);
  Replacement removal(program);
  for (const PlaceIndex place : known.state().accesses.keys()) {
    if (!needs.needed(place)) {
      removal.remove(place);
    }
  }
  removal.apply(program);
}

}  // namespace tessera::graph
