#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "model_shape.hpp"
#include "table.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;

#include "training/mode.hpp"
#include "training/setup.hpp"
#include "training/trainer.hpp"
#include "training/trial.hpp"

namespace tessera::app {
namespace {

constexpr std::string_view parameter_prefix = "parameter.";
constexpr std::string_view optimizer_prefix = "optimizer.";

/// A state of the optimizer has the layout of its parameter, where it has the parameter's shape:
/// "optimizer.STATE.NAME" belongs to "parameter.NAME".
std::map<std::string, std::string> owners_of_state(const Program& program) {
  std::map<std::string, std::string> owners;
  for (const auto& [name, number] : program.inputs) {
    if (!name.starts_with(optimizer_prefix)) {
      continue;
    }
    for (std::size_t dot = name.find('.', optimizer_prefix.size()); dot != std::string::npos;
         dot = name.find('.', dot + 1)) {
      const std::string parameter = std::string(parameter_prefix) + name.substr(dot + 1);
      if (program.inputs.contains(parameter)) {
        owners[name] = parameter;
        break;
      }
    }
  }
  return owners;
}

const Layout& layout_of(const Program& placed, int number) {
  return placed.tensors[static_cast<std::size_t>(number)].spec->layout;
}

/// Splits the batch along its axes and gives the parameters the layouts of a placed program.
class ModeStyle final : public parallel::ParallelStyle {
 public:
  explicit ModeStyle(std::map<std::string, Layout> layouts) : layouts_(std::move(layouts)) {}

  parallel::StyleFacts facts() const override {
    return {.splits_batch = true, .places_parameters = true, .most_axes = 8};
  }

  void apply(const parallel::StyleTarget& target) override {
    for (const nn::ParameterPointer& parameter : nn::all_parameters(target.module)) {
      const auto found = layouts_.find(parameter->name);
      for (const int axis : target.axes) {
        if (found != layouts_.end() && found->second.placement(axis).is_shard()) {
          target.place(*parameter, axis, found->second.placement(axis));
        }
      }
    }
  }

 private:
  std::map<std::string, Layout> layouts_;  // by the parameter's name
};

}  // namespace

bool has_mode(const Config& config) { return !config.graph.mode.empty(); }

Run one_rank_run(const Run& run) {
  Run one = run;
  Config& config = one.config;
  config.train.threads = threads_of_rank(run.config);  // of the process, which has one value
  if (config.train.micro_batch > 0) {
    config.train.micro_batch *= run.config.ranks();
  }
  config.mesh.axes.clear();
  config.mesh.shape.clear();
  config.mesh.latency_us.clear();
  config.mesh.bandwidth_gb.clear();
  config.graph = GraphConfig();
  config.graph.capture = true;
  config.graph.passes.clear();
  config.graph.executor = "interpreter";
  one.kept_gathers = -1;
  one.one_rank = nullptr;
  return one;
}

std::shared_ptr<const OneRank> capture_one_rank(const Run& run) {
  try {
    const Run one = one_rank_run(run);
    auto captured = std::make_shared<OneRank>();
    captured->step = capture_step(one);
    if (const std::string reads = reads_values(captured->step); !reads.empty()) {
      fail_input({.thing = "mode",
                  .wrong = "the host reads values within the step, in " + reads,
                  .advice = "use styles ([[parallel]] entries) instead of a mode"});
    }
    if (run.data->validation_batches() > 0) {
      capture_evaluation(one, *captured);
    }
    return captured;
  } catch (const Error& error) {
    fail_at(run.config.place("graph.mode"), error);
  }
}

OneRank placed_on_mesh(const Run& run, const OneRank& one_rank) {
  graph::DataParallelOptions options{.mode = graph::data_parallel_mode(run.config.graph.mode),
                                     .mesh = make_mesh(run.config),
                                     .like = owners_of_state(one_rank.step)};
  try {
    OneRank placed{.step = graph::data_parallel(one_rank.step, options)};
    if (one_rank.evaluation) {
      options.sharded = sharded_parameters(placed.step);
      placed.evaluation = graph::data_parallel(*one_rank.evaluation, options);
    }
    return placed;
  } catch (const Error& error) {
    fail_at(run.config.place("graph.mode"), error);
  }
}

std::vector<std::string> sharded_parameters(const Program& placed) {
  std::vector<std::string> names;
  for (const auto& [name, number] : placed.inputs) {
    if (name.starts_with(parameter_prefix) && !layout_of(placed, number).is_replicated()) {
      names.push_back(name);
    }
  }
  return names;
}

std::vector<parallel::StyleEntry> plan_entries(const Config& config, const Program* placed) {
  std::vector<parallel::StyleEntry> entries = style_entries(config);
  if (!has_mode(config)) {
    return entries;
  }
  std::map<std::string, Layout> layouts;
  for (const auto& [name, number] : placed == nullptr ? std::map<std::string, int>()
                                                      : placed->inputs) {
    if (name.starts_with(parameter_prefix)) {
      layouts.emplace(name.substr(parameter_prefix.size()), layout_of(*placed, number));
    }
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

std::string mode_text(const Config& config, const Program& placed) {
  std::int64_t parameters = 0;
  for (const auto& [name, number] : placed.inputs) {
    parameters += name.starts_with(parameter_prefix) ? 1 : 0;
  }
  const auto sharded = static_cast<std::int64_t>(sharded_parameters(placed).size());
  return fmt::format("{}: {} parameters are sharded, {} replicated", config.graph.mode, sharded,
                     parameters - sharded);
}

}  // namespace tessera::app
