module;
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.options;
import :section_keys;

namespace tessera::runs {

std::vector<Key> graph_keys() {
  using G = GraphConfig;
  constexpr auto g = &RunSpec::graph;
  return {
      {"graph.capture", field<g, &G::capture>,
       "Capture the step as a program of local operators and collectives before the first one, and "
       "execute that program in every step: the same bits, less time of the host "
       "([graph.md](graph.md))."},
      {"graph.mode", field<g, &G::mode>,
       "With `graph.capture`, and without `[[parallel]]` entries: how the step of one rank is "
       "placed on the mesh, whose axes all split the batch: `expand`, `replicate`, `fully_shard` "
       "or `default` ([graph-modes.md](graph-modes.md#modes-of-data-parallelism)). Empty: the "
       "entries decide."},
      {"graph.executor",
       field<g, &G::executor>,
       "What executes the program, with the same bits ([graph-executors.md](graph-executors.md)). "
       "`compiled` is `planned` with kernels that are generated and compiled.",
       {},
       {"planned", "compiled", "interpreter"}},
      {"graph.device_graphs", field<g, &G::device_graphs>,
       "With `graph.capture` and a device that has them (`cuda`): what is the same in each step is "
       "recorded in the second one and then queued as a few graphs, with the same bits "
       "([graph-executors.md](graph-executors.md#graphs-of-a-device))."},
      {"graph.passes", field<g, &G::passes>,
       "What improves the program, in this order: changes that keep bits "
       "([graph-passes.md](graph-passes.md#passes)). `[]`: nothing."},
      {"graph.transforms", field<g, &G::transforms>,
       "With `graph.capture`: changes, which may compute something else, after the passes and in "
       "this order ([graph-changes.md](graph-changes.md))."},
      {"graph.across_steps", field<g, &G::across_steps>,
       "With `graph.capture`: a step leaves its update to the next one, which makes it where "
       "parameters are first used, while gathers are under way: the same bits, and the shards of "
       "gradients are kept in between ([graph-modes.md](graph-modes.md#across-steps))."},
      {"graph.verify", field<g, &G::verify>,
       "With `graph.capture`: of so many replayed steps one is also taken as it is written, from "
       "the same state, and a bit that differs ends the run "
       "([graph.md](graph.md#verified-steps)). 0: none is.",
       from(0)},
      {"graph.memory_budget", field<g, &G::memory_budget>,
       "With `graph.capture`: the memory that a step of a rank may need, as `4GiB` or `900MiB`. "
       "What is needed for backward is then computed again instead of kept, where this costs "
       "least ([graph-memory.md](graph-memory.md)). Empty: all is kept."},
      path_key(
          "graph.offload", field<g, &G::offload>,
          "With `graph.memory_budget`: a folder on a fast disk. Values may be kept there, in a "
          "file without a name, instead of being computed again "
          "([graph-memory.md](graph-memory.md#values-in-a-file)). Empty: none are."),
      path_key("graph.dump", field<g, &G::dump>,
               "With `graph.capture`: a folder that gets the program before and after each pass, "
               "and the differences; rank r's in `rank-r`."),
      path_key("graph.program", field<g, &G::program>,
               "With `graph.capture`: a file to which rank 0's program is written as text; rank "
               "r's goes to the same name with `.r`."),
  };
}

}  // namespace tessera::runs
