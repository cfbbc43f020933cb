module tessera.graph:analysis_state;

import tessera.base;
import tessera.record;
import :accesses;
import :analysis;
import :shadow;

namespace tessera::graph {

struct Analysis::State {
  Shadow shadow;
  std::vector<Access> accesses;
};

}  // namespace tessera::graph
