export module tessera.graph:keep_gathers;

import tessera.base;
import tessera.record;
import :analysis;

export namespace tessera::graph {

/// Gathers of what was gathered before, and is unchanged, are not made again: their memory is kept.
/// Returns how many. `most`: at most so many, those first that are needed again soonest; -1: all.
/// All ranks must pass the same number.
int keep_gathers(Program& program, int most = -1);

}  // namespace tessera::graph

namespace tessera::graph {

/// The same, without the checks that follow.
int keep_gathers(Program& program, const Analysis& known, int most);

}  // namespace tessera::graph
