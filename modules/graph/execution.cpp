module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.record;
import :pass;
import :planned;
import :recompute;

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

namespace {

/// Passes before and after the program is fitted into its budget.
void improve(Program& program, const ExecutionOptions& options) {
  const std::string dump =
      options.dump.empty() ? std::string() : fmt::format("{}/rank-{}", options.dump, program.rank);
  const std::span<const std::string> all = options.passes;
  if (options.memory_budget == 0) {
    if (!all.empty() || !dump.empty()) {
      run_passes(program, all, dump);
    }
    return;
  }
  const auto last = std::ranges::find(all, "lifetimes");
  const auto before = last == all.end() ? 0 : static_cast<std::size_t>(last - all.begin()) + 1;
  run_passes(program, all.first(before), dump);
  fit_memory(program, options.memory_budget);
  run_passes(program, all.subspan(before), dump.empty() ? dump : dump + "/within-budget");
}

}  // namespace

std::unique_ptr<Executor> make_executor(Program program, const ExecutionOptions& options) {
  check(options);
  improve(program, options);
  if (options.executor == "interpreter") {
    return std::make_unique<Replay>(std::move(program));
  }
  return std::make_unique<Planned>(std::move(program));
}

}  // namespace tessera::graph
