module tessera.passes:facts;

import tessera.base;
import tessera.program;

namespace tessera::graph {

/// Facts of a program that passes ask for while they leave it as it is.
struct ProgramFacts {
  /// Both outlive it.
  ProgramFacts(const Program& program, const Analysis& known);

  const Shadow& shadow;
  const ByPlace<Access>& accesses;
  ByPlace<const Instruction*> places;
  Values values;
  ByMemory<PlaceIndex> last = {};  // the last place that needs a memory

  const Instruction& at(PlaceIndex place) const { return *places[place]; }
};

}  // namespace tessera::graph
