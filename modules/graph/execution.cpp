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
import :planned;

namespace tessera::graph {

std::vector<std::string> executor_names() { return {"interpreter", "planned"}; }

void check(const ExecutionOptions& options) {
  const std::vector<std::string> names = executor_names();
  if (std::ranges::find(names, options.executor) == names.end()) {
    fail_input({.wrong = fmt::format("there is no executor '{}'", options.executor),
                .expected = "one of " + join_words(names)});
  }
}

std::unique_ptr<Executor> make_executor(Program program, const ExecutionOptions& options) {
  check(options);
  if (options.executor == "interpreter") {
    return std::make_unique<Replay>(std::move(program));
  }
  return std::make_unique<Planned>(std::move(program));
}

}  // namespace tessera::graph
