module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;

namespace tessera::runs {
namespace {

graph::DataParallelOptions options_of(const Run& run, const Layouts& layouts) {
  return {.mode = graph::data_parallel_mode(run.config.graph.mode),
          .mesh = make_mesh(run.config),
          .layouts = layouts};
}

/// Splits the batch along its axes and gives the parameters the layouts of a placed program.
class ModeStyle final : public parallel::ParallelStyle {
 public:
  explicit ModeStyle(Layouts layouts) : layouts_(std::move(layouts)) {}

  parallel::StyleFacts facts() const override {
    return {.splits_batch = true, .places_parameters = true, .most_axes = 8};
  }

  void apply(const parallel::StyleTarget& target) override {
    for (const nn::ParameterPointer& parameter : nn::all_parameters(target.module)) {
      const auto found = layouts_.find(parameter_input(parameter->name));
      for (const int axis : target.axes) {
        if (found != layouts_.end() && found->second.placement(axis).is_shard()) {
          target.place(*parameter, axis, found->second.placement(axis));
        }
      }
    }
  }

 private:
  Layouts layouts_;
};

/// "data", or "replicate+shard", of a group of ranks.
std::string axis_of(const CallGroup& group, const DeviceMesh& mesh) {
  std::vector<std::string> names;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    names.push_back(mesh.axis_name(axis));
    if (std::ranges::equal(group.ranks, mesh.group(axis, current_rank()))) {
      return names.back();
    }
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

}  // namespace

std::shared_ptr<const OneRank> capture_one_rank(const Run& run) {
  check_batch_division(run.config, run.config.ranks());
  try {
    const StepSetup one = one_rank_setup(run);
    auto captured = std::make_shared<OneRank>();
    captured->step = recorded_step(run, one, 0);
    if (const std::string reads = reads_values(captured->step); !reads.empty()) {
      fail_input({.thing = "mode",
                  .wrong = "the host reads values within the step, in " + reads,
                  .advice = "use styles ([[parallel]] entries) instead of a mode"});
    }
    if (run.task->validation_batches() > 0) {
      capture_evaluation(run, one, *captured);
    }
    return captured;
  } catch (const Error& error) {
    fail_at(run.config.place("graph.mode"), error);
  }
}

Layouts parameter_layouts(const Run& run, const OneRank& one_rank) {
  try {
    return graph::parameter_layouts(one_rank.step, options_of(run, {}));
  } catch (const Error& error) {
    fail_at(run.config.place("graph.mode"), error);
  }
}

Layouts state_layouts(optim::Optimizer& optimizer) {
  optimizer.prepare_state();
  Layouts layouts;
  for (const auto& [name, value] : optimizer.state().tensors) {
    if (value.is_distributed()) {
      layouts.emplace(state_input(name), value.layout());
    }
  }
  return layouts;
}

OneRank placed_on_mesh(const Run& run, const OneRank& one_rank, const Layouts& layouts) {
  try {
    const graph::DataParallelOptions options = options_of(run, layouts);
    OneRank placed;
    as_rank(current_rank(), [&] {
      placed.step = graph::data_parallel(one_rank.step, options);
      if (one_rank.evaluation) {
        placed.evaluation = graph::data_parallel(*one_rank.evaluation, options);
      }
    });
    return placed;
  } catch (const Error& error) {
    fail_at(run.config.place("graph.mode"), error);
  }
}

std::vector<parallel::StyleEntry> plan_entries(const RunSpec& config, const Layouts& layouts) {
  std::vector<parallel::StyleEntry> entries = style_entries(config);
  if (!has_mode(config)) {
    return entries;
  }
  const DeviceMesh mesh = make_mesh(config);
  std::vector<std::string> axes;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    axes.push_back(mesh.axis_name(axis));
  }
  entries.push_back(
      {.style = "mode " + config.graph.mode,
       .axis = axes,
       .on = {"."},
       .where = config.place("graph.mode"),
       .make = [layouts](parallel::Options&) { return std::make_unique<ModeStyle>(layouts); }});
  return entries;
}

void add_program(Account& account, const Program& program, const DeviceMesh& mesh) {
  const graph::ProgramStatistics statistics = graph::statistics_of(program);
  account.collectives = {};  // those of the replayed step, which do not know the mesh
  for (const graph::CollectiveCount& count : statistics.collectives) {
    const Communicates kind = find_op(count.op).communicates;
    if (kind == Communicates::waits) {
      continue;  // it moves no data
    }
    CollectiveWork& work =
        account.collectives[{axis_of(count.group, mesh), std::string(name_of(kind))}];
    work.calls += count.calls;
    work.bytes += count.received;
  }
  account.memory = {};
  account.memory.total_peak = statistics.peak;
  for (const graph::CategoryBytes& live : statistics.live) {
    for (std::size_t c = 0; c < live.size(); ++c) {
      account.memory.peak[c] = std::max(account.memory.peak[c], live[c]);
    }
  }
}

std::string mode_text(const RunSpec& config, const Layouts& layouts) {
  const auto sharded = std::ranges::count_if(
      layouts, [](const auto& layout) { return !layout.second.is_replicated(); });
  return fmt::format("{}: {} parameters are sharded, {} replicated", config.graph.mode, sharded,
                     static_cast<std::ptrdiff_t>(layouts.size()) - sharded);
}

}  // namespace tessera::runs
