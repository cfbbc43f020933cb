module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tessera/printable.hpp>
#include <utility>
#include <variant>
#include <vector>
module tessera.app.run;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.models;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import tessera.hub;
import tessera.app.base;
import tessera.app.config;
import tessera.app.data;
import tessera.app.model;
import tessera.app.adapters;

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

/// Of a step that leaves its update: what it keeps, and `needed` by whichever of its programs needs
/// most. Their kernels are compiled. Error (input): the update cannot be left.
std::string left_text(const Run& run, const Program& program, std::int64_t& needed) {
  if (!run.config.graph.across_steps) {
    return "";
  }
  const graph::ExecutionOptions execution = execution_of(run.config.graph, run.rates);
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
  graph::compile_kernels(parts.rest, execution);
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

/// What is known of a captured step before the ranks start. `program`: rank 0's. Errors: a step
/// that transformations change must be replayed from the first one on; see graph::compile_kernels.
std::string captured_text(const Run& run, const Program& program, int kept_gathers) {
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
  const graph::ExecutionOptions execution = execution_of(run.config.graph, run.rates);
  const std::optional<graph::CompiledKernels> kernels = graph::compile_kernels(program, execution);
  const bool compiled = kernels && kernels->missing.empty();
  std::int64_t needed = graph::planned_bytes(program, compiled);
  check_space_elsewhere(run.config, graph::bytes_elsewhere(program));
  const std::string left = left_text(run, program, needed);
  return fmt::format("{} instructions, needs {}{}{}{}{}{}; {}", instructions,
                     format_bytes(static_cast<std::uint64_t>(needed)),
                     budget.empty() ? "" : " of " + budget, left, elsewhere_text(run, program),
                     gathers, kernels ? "; " + kernels_text(*kernels) : std::string(),
                     reads.empty()
                         ? "replayed from the first step on"
                         : "recorded in steps 3 and 4, as the host reads values in " + reads);
}

}  // namespace

Trainer::Trainer(const Run& run, Device device, std::span<const Override> replaced)
    : run_(run), device_(device), mesh_(make_mesh(run.config)) {
  set_seed(static_cast<std::uint64_t>(run.config.train.seed));
  model_ = make_model(run.shape, run.config, [&](nn::Module& model) {
    for (const Override& override : replaced) {
      replace_modules(model, override);
    }
  });
  std::shared_ptr<const OneRank> one_rank;  // with graph.mode
  Layouts layouts;
  if (has_mode(run.config)) {
    check_batch_division(run.config, mesh_.size());
    one_rank = run.one_rank ? run.one_rank : capture_one_rank(run);
    layouts = parameter_layouts(run, *one_rank);
  }
  plan_ = std::make_unique<parallel::ParallelPlan>(
      *model_, mesh_, plan_entries(run.config, layouts), plugin::host());
  if (device_ == meta) {
    // Shapes and layouts are all that there is.
  } else if (run.config.model.from.empty()) {
    plan_->materialize(device_);
    nn::initialize(*model_);
  } else {
    plan_->materialize(device_);
    const OpenedTensors folder = open_tensors(run.config.model.from);
    load_model_weights(HubWeights(*folder.source, family_of(run.shape), sizes_of(run.shape)),
                       *model_);
    nn::initialize(nn::update_parameters(*model_));
  }
  if (device_ != meta) {
    plan_->initialized();
    if (!run.config.model.adapter.empty()) {
      load_peft(run.config.model.adapter, *model_);
    }
  }
  model_->set_activation_checkpointing(run.config.train.activation_checkpointing);
  training_ = std::make_unique<Training>(*model_, *plan_,
                                         make_optimizer(run.config, nn::all_parameters(*model_)),
                                         make_schedule(run.config));
  training_->set_clipping(make_clipping(run.config.train));
  if (run.config.train.loss_scaling == "dynamic") {
    training_->set_loss_scaling({});
  }
  graph::ExecutionOptions execution = execution_of(run.config.graph, run.rates);
  execution.kept_gathers = device_ == meta ? run.kept_gathers : kept_gathers(run);
  execution.agree =
      device_ == meta ? graph::suppose_agreement : agreement_of(collective::World::current());
  if (device_ == meta) {
    execution.keeps_anchors = true;
    execution.dump.clear();
  }
  training_->captured().set_enabled(run.config.graph.capture, execution);
  if (one_rank) {
    layouts.merge(state_layouts(training_->optimizer()));
    placed_ = std::make_shared<OneRank>(placed_on_mesh(run, *one_rank, layouts));
    training_->captured().require_program(
        fmt::format("{}: with a mode, all steps are of one kind", run.config.place("graph.mode")));
  }
}

Batch Trainer::no_data(std::int64_t rows) const {
  Batch batch;
  batch.rows = rows;
  batch.seq_len = run_.config.data.seq_len;
  return batch;
}

Tensors Trainer::rows_of(const Batch& batch) const {
  const auto rows_of = [&](const std::vector<std::int64_t>& values) {
    const Dims shape = {batch.rows, batch.seq_len};
    return device_ == meta
               ? empty(shape, DType::i64, meta)
               : ops::to_device(from_values(std::span<const std::int64_t>(values), shape), device_);
  };
  return {rows_of(batch.inputs), rows_of(batch.targets)};
}

StepResult Trainer::step(bool last) {
  if (placed_ && training_->captured().program() == nullptr) {
    capture_ahead();
  }
  const TrainConfig& train = run_.config.train;
  const std::int64_t tokens = run_.config.step_tokens();
  return training_->step({.rows = train.batch,
                          .micro_rows = train.micro_batch,
                          .weight = static_cast<double>(tokens),
                          .tokens = tokens,
                          .parts = run_.batch_parts,
                          .last_train_step = last},
                         functions([&](const BatchPart& m) {
                           return device_ == meta ? no_data(m.rows)
                                                  : run_.data->rows(m.step, m.first, m.rows);
                         }));
}

StepFunctions Trainer::functions(std::function<Batch(const BatchPart&)> batch) const {
  return {.rows = [this, batch = std::move(batch)](
                      const BatchPart& part) { return rows_of(batch(part)); },
          .loss_sum =
              [this](const Tensors& rows) { return loss_sum(*model_, *plan_, rows[0], rows[1]); }};
}

std::string Trainer::program_text() const {
  const Program* const program = training_->captured().program();
  return program == nullptr ? std::string() : program->to_text();
}

void Trainer::capture() {
  training_->captured().capture([this] { step(); });
}

void Trainer::capture_ahead() {
  if (placed_) {
    training_->captured().set_program(lowered(placed_->step, current_rank()));
    if (placed_->evaluation) {
      training_->captured_evaluation().set_program(lowered(*placed_->evaluation, current_rank()),
                                                   training_->captured().execution());
    }
    return;
  }
  // Passes and transformations are run where the program is used.
  Program program = recorded_step(run_, current_rank());
  if (reads_values(program).empty()) {
    training_->captured().set_program(std::move(program));
  }
}

void Trainer::check_inputs(const Trainer& captured) {
  training_->optimizer().prepare_state();
  training_->captured().check_inputs(*captured.program());
}

void Trainer::set_program(const std::string& text, const std::string& where) {
  training_->captured().set_program(Program::parse(text, where));
}

std::optional<double> Trainer::validate() {
  const std::int64_t batches = run_.data->validation_batches();
  if (batches == 0) {
    return std::nullopt;
  }
  if (placed_ && training_->captured().program() == nullptr) {
    capture_ahead();
  }
  return training_->evaluate(batches, evaluation_batch(batches), functions([&](const BatchPart& m) {
                               return run_.data->validation_rows(m.step, m.first, m.rows);
                             }));
}

StepBatch Trainer::evaluation_batch(std::int64_t batches) const {
  const TrainConfig& train = run_.config.train;
  const std::int64_t tokens = batches * run_.config.step_tokens();
  return {
      .rows = train.batch, .micro_rows = train.micro_batch, .weight = static_cast<double>(tokens)};
}

void Trainer::record_evaluation(OneRank& into) {
  into.evaluation = training_->captured_evaluation().record(
      evaluation_batch(1), functions([&](const BatchPart& m) { return no_data(m.rows); }));
}

std::string memory_text(const MemoryStatistics& memory) {
  std::string text = format_bytes(static_cast<std::uint64_t>(memory.total_peak));
  for (int i = 0; i < memory_category_count; ++i) {
    const std::int64_t bytes = memory.peak[static_cast<std::size_t>(i)];
    if (bytes > 0) {
      text += fmt::format("{} {} {}", text.find(':') == std::string::npos ? ":" : ",",
                          name_of(static_cast<MemoryCategory>(i)),
                          format_bytes(static_cast<std::uint64_t>(bytes)));
    }
  }
  return text;
}

CheckedPlan check_plan(const Run& wanted) {
  Run run = wanted;
  device_of(run.config, 0);  // its plugin is loaded before the ranks start
  if (has_mode(run.config) && !run.one_rank) {
    run.one_rank = capture_one_rank(run);
  }
  const DeviceMesh mesh = make_mesh(run.config);
  set_configured_links(run.config, mesh);
  const Trial trial = try_step(run);
  const Account& account = trial.account;
  std::vector<std::vector<std::string>> rows;
  int kept = run.kept_gathers;
  for (const parallel::StyleSummary& style : trial.styles) {
    rows.push_back(
        {"style", fmt::format("{}{}: {} modules, {} parameters", style.style,
                              style.axis.empty() ? "" : fmt::format(" on '{}'", style.axis),
                              style.modules, format_count(static_cast<double>(style.parameters)))});
  }
  if (has_mode(run.config)) {
    rows.push_back({"mode", mode_text(run.config, parameter_layouts(run, *run.one_rank))});
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
  rows.push_back({"memory", "per rank, estimated: " + memory_text(account.memory)});
  if (run.config.graph.capture) {
    const Program program = capture_step(run);
    kept = keeps_gathers(run.config.graph) ? kept_gathers(run, program) : run.kept_gathers;
    rows.push_back({"captured step", captured_text(run, program, kept)});
  }
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
          trial.shared_bytes * static_cast<std::size_t>(mesh.size()),
          lasting - std::min(lasting, trial.shared_bytes),
          account,
          kept,
          run.one_rank};
}

}  // namespace tessera::app
