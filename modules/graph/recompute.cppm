export module tessera.graph:recompute;

import tessera.base;
import tessera.record;

export namespace tessera::graph {

/// What a planned step of the program needs at once, inputs included. `compiled`: with compiled
/// kernels, where a compiler is there.
std::int64_t planned_bytes(const Program& program, bool compiled = false);

/// How a program keeps within a budget of memory.
struct MemoryFit {
  std::int64_t bytes = 0;  // that a planned step needs at once, inputs included
  int calls = 0;           // that are made again
};

/// Changes a program so that a planned step of it needs at most `budget` bytes at once, inputs
/// included: values are dropped after a use and computed again before the next one. Products are
/// only computed again where other calls do not suffice. Error (input): the budget cannot be met;
/// the least that was found is named, and the program stays as it was.
MemoryFit fit_memory(Program& program, std::int64_t budget);

}  // namespace tessera::graph
