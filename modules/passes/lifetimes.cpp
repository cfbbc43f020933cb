// Memory that is released and restored becomes a new memory for each time.
module;
#include <cstddef>
#include <utility>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.program;
import :builtin;
import :renumbering;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

class Lifetimes {
 public:
  Lifetimes(Program& program, const Analysis& known)
      : program_(program), shadow_(known.state().shadow), numbers_(program, shadow_) {}

  void split() {
    for (Section& section : program_.sections) {
      for (Instruction& i : std::exchange(section.instructions, {})) {
        add(std::move(i), section.instructions);
      }
    }
  }

 private:
  /// Inputs and outputs are the caller's: they keep their memory.
  bool is_own(TensorIndex number) const {
    const Memory& one = shadow_.memories[numbers_.memory(number)];
    return !one.is_input && !one.is_output;
  }

  void add(Instruction i, std::vector<Instruction>& into) {
    const bool changes = i.kind == Kind::release || i.kind == Kind::restore;
    if (!changes || !is_own(i.in[0])) {
      numbers_.add(std::move(i), into);
    } else if (i.kind == Kind::restore) {
      const MemoryIndex restored = numbers_.memory(i.in[0]);
      const TensorIndex fresh = numbers_.new_number(numbers_.first(restored));
      numbers_.renew(restored, fresh);
      into.push_back({.kind = Kind::empty, .out = {fresh}, .scope = i.scope});
    }
  }

  Program& program_;
  const Shadow& shadow_;
  Renumbering numbers_;
};

}  // namespace

void split_lifetimes(Program& program, const Analysis& known) { Lifetimes(program, known).split(); }

}  // namespace tessera::graph
