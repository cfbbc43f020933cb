export module tessera.passes:keep_gathers;

import tessera.base;
import tessera.program;

export namespace tessera::graph {

/// Gathers of what was gathered before, and is unchanged, are not made again: their memory is kept.
/// Returns how many. `most`: at most so many, those first that are needed again soonest; -1: all.
/// All ranks must pass the same number.
int keep_gathers(Program& program, int most = -1);
/// As many as a planned step of the program has room for in `budget` bytes.
void keep_gathers_within(Program& program, std::int64_t budget);

}  // namespace tessera::graph
