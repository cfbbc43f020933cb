module tessera.passes:recompute_costs;

import tessera.base;
import tessera.program;
import :recompute;

namespace tessera::graph {

/// The places that use each memory, as an operand or a result, or because it is in flight.
ByMemory<std::vector<int>> uses_of(const Program& program, const Analysis& known);

/// Seconds of making a call again.
double seconds_of(const Instruction& call, const Shadow& shadow, const ComputeRates& rates);

}  // namespace tessera::graph
