module;
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.record;
import :pass;
import :planned;

namespace tessera::graph {

std::vector<std::string> executor_names() { return {"interpreter", "planned"}; }

void check(const ExecutionOptions& options) {
  const std::vector<std::string> names = executor_names();
  if (std::ranges::find(names, options.executor) == names.end()) {
    fail_input({.wrong = fmt::format("there is no executor '{}'", options.executor),
                .expected = "one of " + join_words(names)});
  }
  check_passes(options.passes);
}

std::unique_ptr<Executor> make_executor(Program program, const ExecutionOptions& options) {
  check(options);
  if (!options.passes.empty() || !options.dump.empty()) {
    run_passes(program, options.passes,
               options.dump.empty() ? std::string()
                                    : fmt::format("{}/rank-{}", options.dump, program.rank));
  }
  if (options.executor == "interpreter") {
    return std::make_unique<Replay>(std::move(program));
  }
  return std::make_unique<Planned>(std::move(program));
}

}  // namespace tessera::graph
