export module tessera.graph:recompute;

import tessera.base;
import tessera.record;

export namespace tessera::graph {

/// Changes a program so that its inputs and what it makes need at most `budget` bytes at once:
/// values are dropped after a use and computed again before the next one. Results of products are
/// only computed again where others do not suffice. Returns the bytes that are needed then. Error
/// (input): the budget cannot be met; the least that was found is named.
std::int64_t fit_memory(Program& program, std::int64_t budget);

}  // namespace tessera::graph
