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
module tessera.runs;

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

namespace tessera::runs {
namespace {

/// Error (input): a validation would compute another model than steps with replaced modules.
void check_validation(const Run& run) {
  for (const graph::Change& change : replacing_changes(run.config.graph)) {
    const bool is_right = change.facts.keeps_bits || change.facts.evaluates_as_written;
    if (run.task->validation_batches() > 0 && !is_right) {
      fail_input({.where = run.config.place("data.validation"),
                  .wrong = fmt::format("a validation computes the model as it is written, and "
                                       "steps compute what change '{}' has replaced",
                                       change.name),
                  .advice = "set data.validation=0; a change that only training needs says so "
                            "(evaluates_as_written)"});
    }
  }
}

/// The bytes that a step keeps for its update, which the next one makes; -1: graph.across_steps is
/// not set. `needed` becomes what whichever of its programs needs most. Their kernels are compiled.
/// Error (input): the update cannot be left.
std::int64_t pending_bytes(const Run& run, const graph::ExecutionOptions& execution,
                           const Program& program, std::int64_t& needed) {
  if (!run.config.graph.across_steps) {
    return -1;
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
  return parts.pending_bytes;
}

/// A captured step before the ranks start. Errors: a step that changes of bits change must be
/// replayed from the first one on; see graph::compile_kernels.
CapturedFacts captured_facts(const Run& run, const graph::ExecutionOptions& execution,
                             const Program& program, int kept_gathers,
                             std::size_t bytes_elsewhere) {
  CapturedFacts facts{.kept_elsewhere = bytes_elsewhere, .reads = reads_values(program)};
  for (const Section& section : program.sections) {
    facts.instructions += section.instructions.size();
  }
  if (!facts.reads.empty() && !run.config.graph.transforms.empty()) {
    fail_input({.where = run.config.place("graph.transforms"),
                .wrong = "the step cannot be replayed from the first one on, because the host "
                         "reads values in " +
                         facts.reads,
                .advice = "leave the changes out"});
  }
  check_validation(run);
  facts.gathers_made = gathers_in(program);
  facts.gathers = facts.gathers_made + kept_gathers;
  facts.kernels = graph::compile_kernels(program, execution);
  facts.needed = graph::planned_bytes(program, facts.kernels && facts.kernels->missing.empty());
  facts.values_in_files = std::ranges::count_if(program.tensors, &ProgramTensor::elsewhere);
  facts.bytes_in_files = graph::bytes_elsewhere(program);
  check_space_elsewhere(run.config, facts.bytes_in_files);
  facts.pending = pending_bytes(run, execution, program, facts.needed);
  return facts;
}

/// Of the captured step: one, or one for each place of stages. `kept`: gathers that are kept.
/// Errors: see captured_facts.
std::vector<CapturedFacts> captured_steps(const Run& run, const StepSetup& setup,
                                          const Trial& trial, int& kept) {
  const Program program = capture_step(run, setup);
  kept = keeps_gathers(run.config.graph) ? kept_gathers(run, program) : run.kept_gathers;
  std::vector<CapturedFacts> all;
  const auto add = [&](const Program& one) {
    all.push_back(captured_facts(run, setup.execution, one, kept, trial.bytes_elsewhere));
  };
  add(program);
  for (std::size_t place = 1; place < trial.places.size(); ++place) {
    const int rank = trial.places[place].rank;
    as_rank(rank, [&] { add(capture_step(run, setup, rank)); });  // whose groups have the rank
  }
  return all;
}

Facts checked_facts(const Run& run) {
  // Its plugin is loaded before the ranks start.
  const StepScope kernels(
      [&](StepContext& step) { step.planned_device = device_of(run.config, 0, 1).type; });
  StepSetup setup = setup_of(run);
  if (setup.by_mode && !setup.one_rank) {
    setup.one_rank = capture_one_rank(run);
  }
  set_configured_links(run.config, setup.mesh);
  Facts facts{.trial = try_step(run, setup), .kept_gathers = run.kept_gathers};
  const Trial& trial = facts.trial;
  const Account& account = trial.account;
  if (trial.bytes_elsewhere == 0) {
    check_device_kernels(run.config, trial.missing_kernels);
  }
  if (setup.by_mode) {
    facts.layouts = parameter_layouts(run, *setup.one_rank);
  }
  std::int64_t least = 0;
  if (run.config.graph.capture) {
    setup.states = trial.places.empty() ? nullptr : stage_states(run, setup);
    facts.captured = captured_steps(run, setup, trial, facts.kept_gathers);
    for (const CapturedFacts& captured : facts.captured) {
      least = std::max(least, captured.needed);
    }
  }
  check_device_memory(
      run.config,
      {.memory = account.memory, .least = least, .rows = trial.rows, .micro = trial.micro});
  const auto peak = [&](MemoryCategory category) {
    return static_cast<std::size_t>(account.memory.peak[static_cast<std::size_t>(category)]);
  };
  const std::size_t lasting = peak(MemoryCategory::parameter) + peak(MemoryCategory::optimizer);
  facts.shared_bytes = trial.shared_bytes * static_cast<std::size_t>(setup.mesh.size());
  facts.rank_bytes = lasting - std::min(lasting, trial.shared_bytes) + trial.kept_bytes;
  facts.one_rank = setup.one_rank;
  facts.states = setup.states;
  return facts;
}

}  // namespace

Facts facts_of(const Run& run) {
  try {
    return checked_facts(run);
  } catch (const Error& error) {
    // Where no entry of [[parallel]] is named, it is one of all of them, or of the model.
    const char* const key = error.fields().thing == "mesh" ? "mesh.axes"
                            : run.config.parallel.empty()  ? "model"
                                                           : "parallel";
    fail_at_key(run.config, key, error);
  }
}

}  // namespace tessera::runs
