module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.app.run;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.graph;
import tessera.parallel;
import tessera.train;
import tessera.app.base;
import tessera.app.config;
import tessera.app.data;
import tessera.app.setup;
import tessera.app.steps;

namespace tessera::app {
namespace {

/// The communication of a step: a row for each mesh axis.
std::vector<std::vector<std::string>> communication_rows(const Account& account) {
  struct Sum {
    std::vector<std::string> parts;
    std::int64_t bytes = 0;
  };
  std::map<std::string, Sum> axes;
  for (const auto& [key, work] : account.collectives) {
    Sum& sum = axes[key.first];
    sum.parts.push_back(fmt::format("{} {}", work.calls, key.second));
    sum.bytes += work.bytes;
  }
  std::vector<std::vector<std::string>> rows;
  for (const auto& [axis, sum] : axes) {
    rows.push_back({"communication",
                    fmt::format("on '{}': {}; {} per rank and step", axis, join_words(sum.parts),
                                format_bytes(static_cast<std::uint64_t>(sum.bytes)))});
  }
  return rows;
}

std::string kernels_text(const graph::CompiledKernels& kernels) {
  return kernels.missing.empty()
             ? fmt::format("{} calls of {} compiled kernels for {} calls of operators",
                           kernels.chains, kernels.kernels, kernels.replaced)
             : "no kernels are compiled: " + kernels.missing;
}

/// Error (input): a validation would compute another model than steps that an override has changed.
void check_validation(const Run& run) {
  for (const Override& override : overrides_of(run.config.graph)) {
    if (run.data->validation_batches() > 0 && !override.evaluates_as_written) {
      fail_input({.where = run.config.place("data.validation"),
                  .wrong = fmt::format("a validation computes the model as it is written, and "
                                       "steps compute what override '{}' has replaced",
                                       override.name),
                  .advice = "set data.validation=0; an override that only training needs says so "
                            "(evaluates_as_written)"});
    }
  }
}

/// Text about a step that leaves its update: what it keeps, and `needed` by whichever of its
/// programs needs most. Their kernels are compiled. Error (input): the update cannot be left.
std::string left_text(const Run& run, const graph::ExecutionOptions& execution,
                      const Program& program, std::int64_t& needed) {
  if (!run.config.graph.across_steps) {
    return "";
  }
  const graph::AcrossSteps parts = graph::across_steps(program, execution);
  if (!parts.refusal.empty()) {
    fail_input({.where = run.config.place("graph.across_steps"),
                .wrong = "the update cannot be left to the next step: " + parts.refusal,
                .advice = "set graph.across_steps=false"});
  }
  for (const Program* const part : {&parts.first, &parts.middle, &parts.last}) {
    const std::optional<graph::CompiledKernels> kernels = graph::compile_kernels(*part, execution);
    const bool compiled = kernels && kernels->missing.empty();
    needed = std::max(needed, graph::planned_bytes(*part, compiled));
  }
  graph::compile_kernels(parts.update, execution);
  return fmt::format(", {} of it kept for the update, which the next step makes",
                     format_bytes(static_cast<std::uint64_t>(parts.pending_bytes)));
}

std::string elsewhere_text(const Run& run, const Program& program) {
  const auto values = std::ranges::count_if(program.tensors, &ProgramTensor::elsewhere);
  return run.config.graph.offload.empty()
             ? std::string()
             : fmt::format(
                   "; keeps {} values ({}) in {}", values,
                   format_bytes(static_cast<std::uint64_t>(graph::bytes_elsewhere(program))),
                   run.config.graph.offload);
}

struct CapturedFacts {
  std::string text;
  std::int64_t needed = 0;  // bytes, when it is planned
};

/// Of what a step needs, what a style keeps in other places than the device's memory.
std::string kept_text(std::size_t bytes) {
  return bytes == 0 ? std::string() : fmt::format(", {} of it kept elsewhere", format_bytes(bytes));
}

/// A captured step before the ranks start. `program`: rank 0's. Errors: a step that transformations
/// change must be replayed from the first one on; see graph::compile_kernels.
CapturedFacts captured_facts(const Run& run, const graph::ExecutionOptions& execution,
                             const Program& program, int kept_gathers,
                             std::size_t bytes_elsewhere) {
  std::size_t instructions = 0;
  for (const Section& section : program.sections) {
    instructions += section.instructions.size();
  }
  const std::string& budget = run.config.graph.memory_budget;
  const std::string reads = reads_values(program);
  if (!reads.empty() && !run.config.graph.transforms.empty()) {
    fail_input({.where = run.config.place("graph.transforms"),
                .wrong = "the step cannot be replayed from the first one on, because the host "
                         "reads values in " +
                         reads,
                .advice = "leave the transformations out"});
  }
  check_validation(run);
  const int made = gathers_in(program);
  const std::string gathers =
      !keeps_gathers(run.config.graph)
          ? std::string()
          : fmt::format("; {} of {} gathers are made", made, made + kept_gathers);
  const std::optional<graph::CompiledKernels> kernels = graph::compile_kernels(program, execution);
  const bool compiled = kernels && kernels->missing.empty();
  std::int64_t needed = graph::planned_bytes(program, compiled);
  check_space_elsewhere(run.config, graph::bytes_elsewhere(program));
  const std::string left = left_text(run, execution, program, needed);
  std::string text = fmt::format(
      "{} instructions, needs {}{}{}{}{}{}{}; {}", instructions,
      format_bytes(static_cast<std::uint64_t>(needed)), budget.empty() ? "" : " of " + budget,
      kept_text(bytes_elsewhere), left, elsewhere_text(run, program), gathers,
      kernels ? "; " + kernels_text(*kernels) : std::string(),
      reads.empty() ? "replayed from the first step on"
                    : "recorded in steps 3 and 4, as the host reads values in " + reads);
  return {std::move(text), needed};
}

/// Rows about the captured step: one, or one for each place of stages. Returns the bytes that a
/// rank needs when it is planned; `kept`: gathers that are kept. Errors: see captured_facts.
std::int64_t add_captured(const Run& run, const StepSetup& setup, const Trial& trial, int& kept,
                          std::vector<std::vector<std::string>>& rows) {
  const Program program = capture_step(run, setup);
  kept = keeps_gathers(run.config.graph) ? kept_gathers(run, program) : run.kept_gathers;
  std::int64_t needed = 0;
  const auto add = [&](const Program& one, const std::string& where) {
    CapturedFacts captured = captured_facts(run, setup.execution, one, kept, trial.bytes_elsewhere);
    rows.push_back({"captured step", where + captured.text});
    needed = std::max(needed, captured.needed);
  };
  add(program, trial.places.empty() ? "" : "ranks 0: ");
  for (std::size_t place = 1; place < trial.places.size(); ++place) {
    const int rank = trial.places[place].rank;
    as_rank(rank, [&] {  // whose groups have the rank
      add(capture_step(run, setup, rank), fmt::format("ranks {}: ", place));
    });
  }
  return needed;
}

/// "8 bytes of each trained parameter: 2 of itself, ..."; empty: nothing is trained, or this rank
/// has none of it.
std::string stored_text(const Trial::Stored& stored) {
  if (stored.elements == 0) {
    return "";
  }
  const auto each = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(stored.elements);
  };
  return fmt::format(
      "{:.3g} bytes for each trained parameter: itself {:.3g}, its gradient {:.3g}, the "
      "optimizer's state {:.3g}",
      each(stored.values + stored.gradients + stored.state), each(stored.values),
      each(stored.gradients), each(stored.state));
}

/// What the ranks need: of each place of stages, and by category where it is most.
std::vector<std::vector<std::string>> memory_rows(const Trial& trial) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t place = 0; place < trial.places.size(); ++place) {
    rows.push_back(
        {fmt::format("ranks {}", place), fmt::format("{}: {}", trial.places[place].stages,
                                                     format_bytes(static_cast<std::uint64_t>(
                                                         trial.places[place].memory.total_peak)))});
  }
  rows.push_back({"memory", fmt::format("per rank{}, estimated: {}",
                                        trial.places.empty() ? "" : " that needs most",
                                        memory_text(trial.account.memory))});
  return rows;
}

/// Where the state is kept, with its bytes for each rank.
std::string healing_text(const Run& run, std::size_t bytes) {
  const std::int64_t every = run.config.train.heal_every;
  const std::string when = every == 1 ? "step" : fmt::format("{} steps", every);
  if (!has_second_home(run)) {
    return fmt::format("the state is kept in memory after every {}, twice: {} per rank", when,
                       format_bytes(bytes));
  }
  return fmt::format(
      "the state is kept in memory after every {}, twice, here and on the next machine: {} per "
      "rank; {} per rank are sent there each time",
      when, format_bytes(bytes), format_bytes(bytes / static_cast<std::size_t>(kept_copies(run))));
}

}  // namespace

CheckedPlan check_plan(const Run& run) {
  // Its plugin is loaded before the ranks start.
  const PlannedDeviceScope kernels(device_of(run.config, 0, 1).type);
  StepSetup setup = setup_of(run);
  if (setup.by_mode && !setup.one_rank) {
    setup.one_rank = capture_one_rank(run);
  }
  set_configured_links(run.config, setup.mesh);
  const Trial trial = try_step(run, setup);
  const Account& account = trial.account;
  if (trial.bytes_elsewhere == 0) {
    check_device_kernels(run.config, trial.missing_kernels);
  }
  std::vector<std::vector<std::string>> rows;
  int kept = run.kept_gathers;
  std::int64_t least = 0;
  for (const parallel::StyleSummary& style : trial.styles) {
    rows.push_back(
        {"style", fmt::format("{}{}: {}, {} parameters{}{}", style.style,
                              style.axis.empty() ? "" : fmt::format(" on '{}'", style.axis),
                              count_text(style.modules, "module"),
                              format_count(static_cast<double>(style.parameters)),
                              style.decided.empty() ? "" : "; ", style.decided)});
  }
  if (!trial.objective.empty()) {
    rows.push_back({"objective", trial.objective});
  }
  if (setup.by_mode) {
    rows.push_back({"mode", mode_text(run.config, parameter_layouts(run, *setup.one_rank))});
  }
  if (trial.frozen_parameters > 0) {
    rows.push_back(
        {"frozen", fmt::format("{} of {} parameters",
                               format_count(static_cast<double>(trial.frozen_parameters)),
                               format_count(static_cast<double>(trial.parameters)))});
  }
  if (const std::string links = links_text(run.config); !links.empty()) {
    rows.push_back({"links", links});
  }
  for (auto& row : memory_rows(trial)) {
    rows.push_back(std::move(row));
  }
  if (trial.kept_bytes > 0) {
    rows.push_back({"healing", healing_text(run, trial.kept_bytes)});
  }
  if (const std::string stored = stored_text(trial.stored); !stored.empty()) {
    rows.push_back({"stored", stored});
  }
  if (run.config.graph.capture) {
    setup.states = trial.places.empty() ? nullptr : stage_states(run, setup);
    least = add_captured(run, setup, trial, kept, rows);
  }
  check_device_memory(
      run.config,
      {.memory = account.memory, .least = least, .rows = trial.rows, .micro = trial.micro});
  if (trial.bytes_elsewhere > 0) {
    rows.push_back({"kept elsewhere", fmt::format("{} per rank, in other places than the device's "
                                                  "memory",
                                                  format_bytes(trial.bytes_elsewhere))});
  }
  rows.push_back(
      {"work", fmt::format("{} per step; per rank {}, {} moved", format_flops(account.model_flops),
                           format_flops(account.flops()),
                           format_bytes(static_cast<std::uint64_t>(account.bytes())))});
  for (auto& row : communication_rows(account)) {
    rows.push_back(std::move(row));
  }
  const auto peak = [&](MemoryCategory category) {
    return static_cast<std::size_t>(account.memory.peak[static_cast<std::size_t>(category)]);
  };
  const std::size_t lasting = peak(MemoryCategory::parameter) + peak(MemoryCategory::optimizer);
  return {std::move(rows),
          trial.shared_bytes * static_cast<std::size_t>(setup.mesh.size()),
          lasting - std::min(lasting, trial.shared_bytes) + trial.kept_bytes,
          trial,
          kept,
          setup.one_rank,
          setup.states};
}

}  // namespace tessera::app
