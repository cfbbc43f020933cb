module;
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tessera/shown.hpp>
module tessera.runs;

import tessera.base;
import tessera.passes;
import tessera.graph;
import :key_problems;

// Checks of the section [graph].
namespace tessera::runs {

void check_graph(const RunSpec& config, KeyProblems& problems) {
  problems.add_errors("graph.passes",
                      "changes: ", [&] { graph::check_passes(config.graph.passes); });
  problems.add_errors("graph.transforms",
                      "changes: ", [&] { graph::check_changes(config.graph.transforms); });
  const GraphConfig& graph = config.graph;
  const auto only_captured = [&](const char* key, bool is_set, const char* what) {
    if (problems.known({key, "graph.capture"}) && is_set && !graph.capture) {
      problems.add({key}, fmt::format("only captured steps {}; set graph.capture=true", what));
    }
  };
  only_captured("graph.transforms", !graph.transforms.empty(), "can be changed");
  only_captured("graph.mode", !graph.mode.empty(), "are placed by a mode");
  if (problems.known({"graph.mode"}) && !graph.mode.empty()) {
    problems.add_errors("graph.mode", "", [&] { graph::data_parallel_mode(graph.mode); });
  }
  if (problems.known({"graph.mode"}) && !graph.mode.empty() && !config.parallel.empty()) {
    problems.add({"graph.mode"},
                 fmt::format("the mode '{}' places the whole step, and so would {} "
                             "([[parallel]] in {}); remove one of the two",
                             shown(graph.mode), shown(config.parallel.front().style),
                             config.parallel.front().where));
  }
  only_captured("graph.program", !graph.program.empty(), "have a program");
  only_captured("graph.executor", graph.executor != GraphConfig().executor, "have an executor");
  only_captured("graph.device_graphs", graph.device_graphs, "become graphs");
  if (problems.known({"graph.device_graphs", "graph.executor"}) && graph.device_graphs &&
      graph.executor == "interpreter") {
    problems.add({"graph.device_graphs", "graph.executor"},
                 "the interpreter calls each operator anew; use 'planned' or 'compiled'");
  }
  if (problems.known({"graph.device_graphs", "train.device"}) && graph.device_graphs &&
      config.train.device == "cpu") {
    problems.add({"graph.device_graphs", "train.device"},
                 "the CPU has no graphs; set train.device, or leave it out");
  }
  only_captured("graph.across_steps", graph.across_steps, "can leave their updates");
  only_captured("graph.verify", graph.verify != 0, "can be verified");
  if (problems.known({"graph.verify", "graph.mode"}) && graph.verify > 0 && !graph.mode.empty()) {
    problems.add({"graph.verify", "graph.mode"},
                 "a step that a mode places cannot be taken as it is written; remove one of the "
                 "two");
  }
  only_captured("graph.memory_budget", !graph.memory_budget.empty(), "have a budget of memory");
  if (problems.known({"graph.offload", "graph.memory_budget"}) && !graph.offload.empty() &&
      graph.memory_budget.empty()) {
    problems.add(
        {"graph.offload"},
        "only steps with a budget of memory keep values elsewhere; set graph.memory_budget");
  }
  if (problems.known({"graph.offload", "train.device"}) && !graph.offload.empty() &&
      config.train.device != "cpu") {
    problems.add(
        {"graph.offload", "train.device"},
        fmt::format("values of '{}' cannot be kept in a file yet; leave graph.offload out, or "
                    "set train.device=cpu",
                    shown(config.train.device)));
  }
  only_captured("graph.dump", !graph.dump.empty(), "have passes");
  if (problems.known({"graph.dump", "graph.program"}) && !graph.dump.empty() &&
      graph.dump == graph.program) {
    problems.add({"graph.program", "graph.dump"}, "a file and a folder cannot have one name");
  }
  if (problems.known({"graph.memory_budget"}) && !graph.memory_budget.empty() && graph.capture &&
      !bytes_of_text(graph.memory_budget)) {
    problems.add({"graph.memory_budget"},
                 fmt::format("'{}' is no amount of memory (expected a number and KiB, MiB, GiB or "
                             "TiB: 4GiB, 1.5GiB)",
                             shown(graph.memory_budget)));
  }
}

}  // namespace tessera::runs
