export module tessera.program:analysis_state;

import tessera.base;
import :accesses;
import :analysis;
import :index;
import :shadow;

export namespace tessera::graph {

/// Parts of an Analysis, for passes of this library.
struct Analysis::State {
  Shadow shadow;
  ByPlace<Access> accesses;
};

}  // namespace tessera::graph
