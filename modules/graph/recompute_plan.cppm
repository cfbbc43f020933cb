module tessera.graph:recompute_plan;

import tessera.base;
import tessera.record;
import :analysis;

namespace tessera::graph {

/// A call that is made again before an instruction, because its results were dropped meanwhile.
struct Recomputation {
  int place = 0;  // of the instruction
  int maker = 0;  // the place of the call
  /// By operand of the call: the memory that holds its value then, or that another recomputation at
  /// this place makes; -1: absent.
  std::vector<int> sources = {};
  /// Memories that later instructions find in its results. None: other recomputations need it.
  std::vector<int> revived = {};
};

struct RecomputeLimits {
  std::int64_t bytes = 0;  // that are needed at once, inputs excepted; no less is looked for
  bool products = false;   // whether products (operators that declare FLOPs) are made again
};

/// What to make again, so that fewer bytes are needed at once: at each peak, the value for which a
/// second of computing frees most. A value can be made again where its operands' values are there,
/// or can be made again themselves. By place. `known`: of the program.
std::vector<Recomputation> plan_recompute(const Program& program, const Analysis& known,
                                          const RecomputeLimits& limits);

}  // namespace tessera::graph
