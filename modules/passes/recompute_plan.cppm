module tessera.passes:recompute_plan;

import tessera.base;
import tessera.program;
import :offload_plan;
import :recompute;

namespace tessera::graph {

/// Action before an instruction, because values were dropped meanwhile: a call is made again,
/// or a value is fetched from other memory.
struct Recomputation {
  PlaceIndex place;
  PlaceIndex maker = {};      // the place of the call; none: a value is fetched
  OffloadIndex offload = {};  // of MemoryChoices; none: a call is made again
  /// By operand of the call: the memory that holds its value then, or that another recomputation at
  /// this place makes; none: absent.
  std::vector<MemoryIndex> sources = {};
  /// Memories that later instructions find in its results. None: other recomputations need it.
  std::vector<MemoryIndex> revived = {};
};

struct RecomputeLimits {
  std::int64_t bytes = 0;  // that are needed at once, inputs excepted; no less is looked for
  bool products = false;   // whether products (operators that declare FLOPs) are made again
};

struct MemoryChoices {
  std::vector<Recomputation> again = {};  // by place
  ByOffload<Offload> offloads = {};
  double seconds = 0;  // that all of it takes
};

/// Chooses what to make again or to keep in other memory, so that fewer bytes are needed at once:
/// at each peak, the value for which a second frees most. A value can be made again where its
/// operands' values are there, or can be made again or fetched themselves. `known`: of the program.
MemoryChoices plan_recompute(const Program& program, const Analysis& known,
                             const RecomputeLimits& limits, const FitOptions& options = {});

}  // namespace tessera::graph
