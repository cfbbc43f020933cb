module tessera.passes;

import tessera.base;
import tessera.program;
import :facts;

namespace tessera::graph {
namespace {

Values own_values_of(const Program& program, const Analysis& known) {
  ValueNames names;
  return values_of(program, known, names);
}

}  // namespace

ProgramFacts::ProgramFacts(const Program& program, const Analysis& known)
    : shadow(known.state().shadow),
      accesses(known.state().accesses),
      places(places_of(program)),
      values(own_values_of(program, known)) {
  for (const Memory& one : shadow.memories) {
    last.add(one.last);
  }
}

}  // namespace tessera::graph
