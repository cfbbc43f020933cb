module;
#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <tessera/limits.hpp>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.execute;
import tessera.passes;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;

namespace tessera::runs {
namespace {

bool is_offloaded(const GraphConfig& graph) {
  return graph.capture && !graph.offload.empty() && !graph.memory_budget.empty();
}

std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

std::shared_ptr<MemoryPlace> memory_elsewhere(const GraphConfig& graph) {
  if (!is_offloaded(graph)) {
    return nullptr;
  }
  parallel::Options options(
      fmt::format(R"({{"to": "file", "folder": {}}})", json_string(graph.offload)),
      "graph.offload");
  const auto style = plugin::host().find<parallel::ParallelStyle>("Offload")(options);
  options.finish();
  return style->memory_place();
}

StepRates rates_of(const RunSpec& config) {
  const GraphConfig& graph = config.graph;
  if (!is_offloaded(graph) || collective::launched_by_other(config.machine) ||
      collective::launcher_place(config.machine)) {
    return {};
  }
  // One thread: those of a process do not survive the launch of the ranks.
  const auto measure = [&] {
    ops::set_threads(1);
    return graph::measured_rates(memory_elsewhere(graph).get());
  };
  graph::FitOptions rates;
  in_own_thread("graph.offload", [&] { rates = measure(); });
  return {.flops = rates.computing.flops * threads_of_rank(config),
          .bytes = rates.computing.bytes,
          .stored = rates.offloading->stored,
          .fetched = rates.offloading->fetched};
}

void check_space_elsewhere(const RunSpec& config, std::int64_t bytes) {
  if (bytes == 0) {
    return;
  }
  std::filesystem::path part = std::filesystem::absolute(config.graph.offload);
  std::error_code error;
  while (part.has_relative_path() && !std::filesystem::exists(part, error)) {
    part = part.parent_path();
  }
  const std::filesystem::space_info space = std::filesystem::space(part, error);
  // Ranks that another launcher starts may be on other machines.
  const std::int64_t ranks =
      collective::ranks_started_here(static_cast<int>(config.ranks()), config.machine);
  const auto needed = static_cast<std::uint64_t>(bytes * ranks);
  if (!error && space.available < needed) {
    fail_input({.where = config.place("graph.offload"),
                .wrong = fmt::format("folder '{}' has too little space for what steps keep there",
                                     config.graph.offload),
                .expected = fmt::format("{} for {} ranks", format_bytes(needed), ranks),
                .got = format_bytes(space.available),
                .advice = "choose another folder, or a larger graph.memory_budget"});
  }
}

}  // namespace tessera::runs
