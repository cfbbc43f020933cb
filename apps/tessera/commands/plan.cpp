module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.mesh;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import tessera.app.config;
import tessera.app.data;
import tessera.app.model;
import tessera.app.run;
import tessera.app.plan;
import :run_data;

// `tessera plan`.
namespace tessera::app {
namespace {

/// Overrides that put a run on `ranks` ranks. Error (input): they cannot.
std::vector<std::string> on_ranks(const Config& config, std::int64_t ranks) {
  const std::vector<std::int64_t>& shape = config.mesh.shape;
  std::int64_t others = 1;
  for (std::size_t axis = 1; axis < shape.size(); ++axis) {
    others *= shape[axis];
  }
  if (shape.empty() || ranks % others != 0) {
    fail_input({.thing = "--ranks",
                .wrong = shape.empty()
                             ? "the run has no mesh"
                             : fmt::format("the other axes of the mesh have {} ranks", others),
                .expected = shape.empty() ? "an axis in mesh.axes"
                                          : fmt::format("a multiple of {}", others),
                .got = std::to_string(ranks)});
  }
  std::vector<std::int64_t> wanted = shape;
  wanted[0] = ranks / others;
  const std::int64_t batch = config.train.batch * wanted[0];
  if (batch % shape[0] != 0) {
    fail_input({.thing = "--ranks",
                .wrong = fmt::format("a batch of {} on {} ranks of '{}' does not give a whole one "
                                     "on {}",
                                     config.train.batch, shape[0], config.mesh.axes[0], wanted[0]),
                .advice = "set train.batch and mesh.shape instead"});
  }
  return {fmt::format("mesh.shape=[{}]", fmt::join(wanted, ",")),
          fmt::format("train.batch={}", batch / shape[0])};
}

/// The run that a config describes, on as many ranks as are wanted. Its data are those of the
/// config's own batch: a plan needs no more.
Run run_to_plan(const TrainArguments& arguments, std::int64_t ranks) {
  Run run;
  run.config = load_run_config(arguments);
  RunData data = open_run_data(run.config);
  if (ranks > 0) {
    std::vector<std::string> overrides = arguments.overrides;
    for (std::string& override : on_ranks(run.config, ranks)) {
      overrides.push_back(std::move(override));
    }
    run.config = load_config(arguments.config, overrides);
  }
  run.shape = std::move(data.shape);
  run.data = std::move(data.dataset);
  run.rates = rates_of(run.config);
  return run;
}

/// Seconds of kernels at given rates, each with its launch.
ByPlace<double> seconds_at(const Program& program, const DeviceRates& rates) {
  ByPlace<double> seconds;
  for (const std::optional<KernelCost>& cost : kernel_costs(program, rates)) {
    seconds.add(cost ? cost->seconds + rates.launch : 0);
  }
  return seconds;
}

}  // namespace

int run_plan(const TrainArguments& arguments, const PlanArguments& wanted) {
  const Run run = run_to_plan(arguments, wanted.ranks);
  const Config& config = run.config;
  const bool measures = wanted.hardware.empty();
  if (measures && config.train.device != "cpu") {
    fail_input({.thing = "plan",
                .wrong = fmt::format("the run is for '{}', and kernels are measured on a CPU",
                                     config.train.device),
                .advice = "name the rates of its device with --hardware FILE"});
  }
  Hardware hardware = measures ? Hardware() : read_hardware(wanted.hardware);
  TableRows rows = plan_rows(config, run.shape, *run.data);
  const CheckedPlan plan = planned(run);
  rows.insert(rows.end(), plan.rows.begin(), plan.rows.end());
  if (plan.in_stages) {
    fail_input({.thing = "plan",
                .wrong = "the model is in stages, whose ranks do different things at different "
                         "times: they are not put in time",
                .expected = "a run without a style that divides the model",
                .advice = "train --dry-run says memory and communication, pipeline draw the time "
                          "of a schedule"});
  }
  const Program program =
      config.graph.capture ? capture_step(run) : recorded_step(run, setup_of(run), 0);
  const auto ranks = static_cast<int>(config.ranks());
  if (measures) {
    hardware = measure_hardware(ranks, threads_of_rank(config));
    if (!wanted.save.empty()) {
      write_output("--save-hardware", wanted.save, hardware_text(hardware));
    }
  }
  const ByPlace<double> seconds = measures
                                      ? measure_kernels(program, ranks, threads_of_rank(config))
                                      : seconds_at(program, hardware.rates);
  const SimulatedStep step = simulate_step(program, seconds, hardware);
  const auto step_tokens = static_cast<double>(config.step_tokens());
  const PlannedRun planned{.program = program,
                           .step = step,
                           .hardware = hardware,
                           .mesh = setup_of(run).mesh,
                           .step_tokens = step_tokens,
                           .model_flops = plan.account.model_flops,
                           .memory = static_cast<double>(plan.account.memory.total_peak),
                           .tokens = wanted.tokens > 0
                                         ? wanted.tokens
                                         : step_tokens * static_cast<double>(config.train.steps)};
  if (!wanted.trace.empty()) {
    write_planned_trace(planned, wanted.trace);
  }
  if (wanted.json) {
    fmt::print("{}", planned_json(planned));
    return 0;
  }
  for (auto& row : planned_rows(planned)) {
    rows.push_back(std::move(row));
  }
  fmt::print("{}{}", format_table(rows), planned_tables(planned));
  return 0;
}

}  // namespace tessera::app
