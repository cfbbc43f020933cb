export module tessera.program:analysis_state;

import tessera.base;
import :accesses;
import :analysis;
import :shadow;

export namespace tessera::graph {

struct Analysis::State {
  Shadow shadow;
  std::vector<Access> accesses;
};

}  // namespace tessera::graph
