module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
module tessera.app.plan;

import tessera.base;
import tessera.mesh;
import tessera.program;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;

namespace tessera::app {
namespace {

/// Seconds of kernels at given rates, each with its launch.
ByPlace<double> seconds_at(const Program& program, const DeviceRates& rates) {
  ByPlace<double> seconds;
  for (const std::optional<KernelCost>& cost : kernel_costs(program, rates)) {
    seconds.add(cost ? cost->seconds + rates.launch : 0);
  }
  return seconds;
}

}  // namespace

Planner::Planner(const runs::RunSpec& config, const std::string& file) {
  if (!file.empty()) {
    hardware_ = read_hardware(file);
    return;
  }
  if (config.train.device != "cpu") {
    fail_input({.thing = "plan",
                .wrong = fmt::format("the run is for '{}', and kernels are measured on a CPU",
                                     config.train.device),
                .advice = "name the rates of its device with --hardware FILE"});
  }
  const auto ranks = static_cast<int>(config.ranks());
  hardware_ = measure_hardware(ranks, runs::threads_of_rank(config));
  measured_.emplace(ranks, runs::threads_of_rank(config));
}

void Planner::measure_again() {
  if (measured_) {
    measured_->measure_again();
  }
}

ByPlace<double> Planner::kernel_seconds(const Program& program) {
  return measured_ ? measured_->seconds_of(program) : seconds_at(program, hardware_.rates);
}

SimulatedStep Planner::simulated(const Program& program) {
  return simulate_step(program, kernel_seconds(program), hardware_);
}

Program step_program(const runs::Run& run, const runs::StepSetup& setup) {
  return run.config.graph.capture ? runs::capture_step(run, setup)
                                  : runs::recorded_step(run, setup, 0);
}

StepTimes Planner::times_of(const runs::Run& run, const runs::StepSetup& setup,
                            const Program& program, const SimulatedStep& step) const {
  StepTimes times = sums_of(program, step, setup.mesh);
  if (waits_for_host(run.config)) {
    add_host(times, runs::host_seconds(run, setup));
  }
  return times;
}

StepTimes Planner::step_of(const runs::Run& run, const runs::Trial& trial) {
  runs::StepSetup setup = runs::setup_of(run);
  const std::int64_t parts = trial.parts;
  const std::int64_t micro_batches = trial.rows / trial.micro;
  constexpr std::int64_t few = 3;
  const auto step = [&](std::int64_t with) {
    if (with < micro_batches) {
      setup.rows = {.all = parts * trial.micro * with, .micro = trial.micro};
    }
    const Program program = step_program(run, setup);
    return times_of(run, setup, program, simulated(program));
  };
  if (micro_batches <= few) {
    return step(micro_batches);
  }
  const StepTimes last = step(few);  // what is measured for it is all that the other one needs
  return continued(step(few - 1), last, static_cast<double>(micro_batches - few));
}

void add_keeping(StepTimes& step, const Hardware& hardware, const runs::Run& run,
                 const runs::Trial& trial) {
  const int copies = runs::kept_copies(run);
  if (copies == 0) {
    return;
  }
  const auto steps = static_cast<double>(run.config.train.heal_every);
  const double bytes = static_cast<double>(trial.kept_bytes) / copies;
  const double copying = copy_seconds(hardware, bytes);
  // What is sent delays the collectives that share its link by as long, and is awaited at the next
  // state.
  const double sending = runs::has_second_home(run) ? bytes / hardware.between.bandwidth : 0;
  const double delayed = std::min(sending, steps * step.waiting);
  const double free = steps * (step.seconds - step.communicating);
  step.keeping = (copying + std::max(delayed, sending - free)) / steps;
  step.seconds += step.keeping;
}

FailingRun failing_run(const Hardware& hardware, const runs::RunSpec& config,
                       const runs::Trial& trial, double step_seconds) {
  const HardwareFailures& rates = hardware.failures;
  if (rates.per_rank_year <= 0) {
    return {};
  }
  if (rates.write <= 0 || rates.read <= 0) {
    fail_input({.thing = "failures",
                .wrong = "the hardware file does not say how fast checkpoints are written and read",
                .expected = "write_gb and read_gb in [failures], greater than 0",
                .advice = "add them to a copy of the file"});
  }
  constexpr double year = 365.25 * 86400;
  const auto bytes = static_cast<double>(trial.stored.values + trial.stored.state);
  const bool background = config.checkpoint.save == runs::SaveMode::async;
  const double write = bytes / rates.write;
  return {.between = year / rates.per_rank_year / static_cast<double>(config.ranks()),
          .write = background ? copy_seconds(hardware, bytes) : write,
          .restart = rates.restart + bytes / rates.read + (background ? write : 0),
          .interval = config.checkpoint.folder.empty()
                          ? 0
                          : static_cast<double>(config.checkpoint.every) * step_seconds};
}

}  // namespace tessera::app
