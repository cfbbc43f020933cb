module;
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.stores;
import tessera.plugin;
import tessera.data;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
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
import :record_members;

namespace tessera::runs {
namespace {

constexpr const char* spikes_text = "spikes";  // in checkpoints

}  // namespace

Trainer::Trainer(const Run& run, Device device) : Trainer(run, setup_of(run), device, {}) {}

Trainer::Trainer(const Run& run, const StepSetup& setup, std::span<const graph::Change> replacing)
    : Trainer(run, setup, meta, replacing) {}

Trainer::Trainer(const Run& run, const StepSetup& setup, Device device,
                 std::span<const graph::Change> replacing)
    : run_(run), setup_(setup), device_(device) {
  set_seed(static_cast<std::uint64_t>(run.config.train.seed));
  model_ = training_model(*run.task, run.config, [&](nn::Module& model) {
    for (const graph::Change& change : replacing) {
      replace_modules(model, change);
    }
  });
  Layouts layouts;
  if (setup_.by_mode) {
    check_batch_division(run.config, setup_.mesh.size());
    if (!setup_.one_rank) {
      setup_.one_rank = capture_one_rank(run);
    }
    layouts = parameter_layouts(run, *setup_.one_rank);
  }
  plan_ = std::make_unique<parallel::ParallelPlan>(
      *model_, setup_.mesh,
      setup_.by_mode ? plan_entries(run.config, layouts) : style_entries(run.config),
      plugin::host());
  task_ = run.task->on_rank(run.config, setup_.mesh, *model_, *plan_, device_);
  if (device_ != meta) {  // where shapes and layouts are all that there is
    plan_->materialize(device_);
    run.task->initialize(run.config, *model_);
    plan_->initialized();
    task_->initialized();
  }
  expert_loads_ = std::make_unique<ExpertLoads>(*model_, *plan_);
  training_ = std::make_unique<Training>(
      *model_, *plan_, task_optimizer(*run.task, run.config, *model_), make_schedule(run.config));
  training_->checkpoints().set_base(run.task->checkpoint_base(run.config, run.base_hash, *model_));
  if (const FrozenCopy* const copy = task_->frozen_copy()) {
    training_->add_model(copy->model());
  }
  training_->set_planned_states(setup_.states);
  training_->set_clipping(make_clipping(run.config.train));
  if (run.config.train.is_layout_free()) {
    try {
      training_->set_virtual_shards(
          {.batch = run.config.train.virtual_shards, .features = run.config.train.feature_shards});
    } catch (const Error& error) {
      fail_at(run.config.place("train.reproducible"), error);
    }
  }
  if (run.config.train.loss_scaling == LossScaling::dynamic) {
    training_->set_loss_scaling({});
  }
  watch_spikes();
  give_texts();
  graph::ExecutionOptions execution = setup_.execution;
  if (plan_->stages() != nullptr) {
    execution.agree = {};  // the ranks of other stages have other programs, maybe at other times
  } else {
    execution.agree =
        device_ == meta ? graph::suppose_agreement : agreement_of(collective::World::current());
  }
  if (device_ == meta) {
    execution.keeps_anchors = true;
    execution.dump.clear();
  } else {
    execution.kept_gathers = kept_gathers(run);
  }
  training_->captured().set_enabled(setup_.captured, execution);
  if (setup_.by_mode) {
    layouts.merge(state_layouts(training_->optimizer()));
    placed_ = std::make_shared<OneRank>(placed_on_mesh(run, *setup_.one_rank, layouts));
    training_->captured().require_program(
        fmt::format("{}: with a mode, all steps are of one kind", run.config.place("graph.mode")));
  }
}

std::size_t Trainer::shared_bytes() const {
  const std::size_t own = tessera::shared_bytes(*plan_, nn::all_parameters(*model_));
  const FrozenCopy* const copy = task_->frozen_copy();
  return copy == nullptr
             ? own
             : own + tessera::shared_bytes(copy->plan(), nn::all_parameters(copy->model()));
}

StepResult Trainer::step(bool last) { return step(setup_.rows, last); }

StepBatch Trainer::batch_of(const StepRows& rows, bool last) const {
  return {.rows = rows.all,
          .micro_rows = rows.micro,
          .weight = task_->weight(done(), rows.all),
          .tokens = rows.all * run_.config.row_sequences() * run_.config.data.seq_len,
          .parts = setup_.parts,
          .last_train_step = last};
}

StepResult Trainer::step(const StepRows& rows, bool last) {
  if (placed_ && training_->captured().program() == nullptr) {
    capture_ahead();
  }
  const StepResult result =
      training_->step(batch_of(rows, last), functions([this](const BatchPart& part) {
                        const TimeScope reads(ledger_, TimeUse::data);
                        return task_->rows(part);
                      }));
  if (detector_) {
    spike_ = detector_->spike(result);
    detector_->add(result);
    refused_in_turn_ = result.refused ? refused_in_turn_ + 1 : 0;
    give_texts();
    if (constexpr std::int64_t most = 10; refused_in_turn_ > most) {
      fail({.thing = "train.on_spike",
            .wrong = fmt::format("{} steps in turn were left out, so it is not their rows", most),
            .advice = "look at the learning rate, or set action = \"warn\""});
    }
  }
  return result;
}

void Trainer::watch_spikes() {
  policy_ = spike_policy(run_.config);
  if (!policy_ || device_ == meta) {
    return;
  }
  detector_.emplace(policy_->over);
  if (policy_->action != SpikeAction::warn) {
    training_->set_update_guard(
        [this](const StepResult& result) { return detector_->spike(result).has_value(); });
  }
}

void Trainer::give_texts() {
  std::map<std::string, std::string>& texts = training_->checkpoints().texts();
  if (const RowHistory* const history = task_->history();
      history != nullptr && !history->excluded().empty()) {
    texts[exclusions_text] = to_json(history->excluded());
  }
  if (detector_) {
    texts[spikes_text] = detector_->state();
  }
}

/// What is left out is known before a run continues (ContinuedRows), or by who goes back.
void Trainer::take_texts() {
  const std::map<std::string, std::string>& texts = training_->checkpoints().texts();
  if (const auto found = texts.find(spikes_text); detector_ && found != texts.end()) {
    detector_->load(found->second);
  }
  spike_.reset();
  refused_in_turn_ = 0;
  give_texts();
}

void Trainer::resume(const std::string& checkpoint) {
  training_->checkpoints().load(checkpoint);
  take_texts();
}

std::vector<std::vector<std::string>> Trainer::roll_back(const std::string& checkpoint) {
  RowHistory* const history = task_->history();
  if (history == nullptr) {
    fail_input({.where = run_.config.place("train.on_spike"),
                .wrong = "the rows are not those of files, so none can be left out",
                .advice = "set action = \"skip\""});
  }
  std::vector<std::vector<std::string>> rows = places_of_step(*history, done() - 1);
  resume(checkpoint);
  std::vector<data::RecordPlace> places;
  for (const std::vector<std::string>& row : rows) {
    for (const std::string& place : row) {
      places.push_back(data::parse_record_place(place));
    }
  }
  history->leave_out(done(), places);
  give_texts();
  return rows;
}

StepFunctions Trainer::functions(std::function<Tensors(const BatchPart&)> rows) const {
  return {.rows = std::move(rows),
          .loss_sum = [this](const Tensors& read) { return task_->sums(read); },
          .states = [this](const Tensors& read) { return task_->states(read); },
          .guards = task_->guards(done())};
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
  if (plan_->stages() != nullptr && !setup_.states) {
    setup_.states = stage_states(run_, setup_);
    training_->set_planned_states(setup_.states);
  }
  // Passes and other changes are run where the program is used.
  Program program = recorded_step(run_, setup_, current_rank());
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

std::optional<Validation> Trainer::validate() {
  const std::int64_t batches = run_.task->validation_batches();
  if (batches == 0) {
    return std::nullopt;
  }
  if (placed_ && training_->captured().program() == nullptr) {
    capture_ahead();
  }
  const Evaluation evaluation = training_->evaluate(
      batches, evaluation_batch(batches),
      functions([this](const BatchPart& part) { return task_->validation_rows(part); }));
  return Validation{evaluation.loss, task_->measures(evaluation.measured)};
}

StepBatch Trainer::evaluation_batch(std::int64_t batches) const {
  return {.rows = setup_.rows.all,
          .micro_rows = setup_.rows.micro,
          .weight = task_->validation_weight(batches, setup_.rows.all)};
}

void Trainer::record_evaluation(OneRank& into) {
  into.evaluation = training_->captured_evaluation().record(
      evaluation_batch(1),
      functions([this](const BatchPart& part) { return task_->validation_rows(part); }));
}

void Trainer::resume(const MemoryStateStore& kept) {
  const std::string& folder = run_.config.checkpoint.folder;
  const std::vector<std::string> saved =
      folder.empty() ? std::vector<std::string>{} : checkpoints_in(folder);
  training_->checkpoints().load(*kept.open(), saved.empty() ? std::string() : saved.front());
  take_texts();
}

std::string Trainer::checkpoint_meta(const std::string& updates) const {
  std::string of_task = record_members(run_);
  for (const auto& [name, json] : run_.task->checkpoint_meta()) {
    of_task += fmt::format(R"("{}": {}, )", name, json);
  }
  return fmt::format(R"({{"written_by": "{}", "config": {}, {}"fingerprint": {}, {}}})",
                     plugin::host_version(), to_json(run_.config), of_task,
                     to_json(run_.fingerprint), updates);
}

void Trainer::save(const std::string& folder) {
  training_->checkpoints().save(folder, checkpoint_meta(hub::updates_member(*model_)));
}

void Trainer::set_record(std::string text) {
  training_->checkpoints().texts()[record_text] = std::move(text);
}

std::string Trainer::record() const {
  const auto& texts = training_->checkpoints().texts();
  const auto found = texts.find(record_text);
  return found == texts.end() ? std::string() : found->second;
}

RunCheckpoints Trainer::checkpoints(std::function<void(const std::string&)> say,
                                    MemoryStateStore* kept) {
  const CheckpointConfig& config = run_.config.checkpoint;
  if (!config.folder.empty() && !stores::is_address(config.folder) &&
      collective::World::current().rank() == 0) {
    run_.task->keep_files(config.folder);
  }
  const auto meta_data = [this, updates = hub::updates_member(*model_)] {
    return checkpoint_meta(updates);
  };
  return {*training_,
          {.folder = config.folder,
           .every = config.every,
           .keep = static_cast<int>(config.keep),
           .background = config.save == SaveMode::async,
           .skip_when_busy = config.when_busy == WhenBusy::skip,
           .kept = kept,
           .keep_every = run_.config.train.heal_every,
           .compare_every = run_.config.train.checksums},
          meta_data,
          std::move(say)};
}

std::size_t Trainer::state_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [name, state] : training_->optimizer().state().tensors) {
    const Tensor& local = local_of(state);
    bytes += static_cast<std::size_t>(local.numel()) * size_of(local.dtype());
  }
  return bytes;
}

std::size_t Trainer::snapshot_bytes() const {
  const CheckpointConfig& config = run_.config.checkpoint;
  const bool in_background = !config.folder.empty() && config.save == SaveMode::async;
  return kept_bytes() +
         (in_background ? tessera::snapshot_bytes(training_->checkpoints().saved_state()) : 0);
}

std::size_t Trainer::kept_bytes() const {
  const auto copies = static_cast<std::size_t>(kept_copies(run_));
  return copies == 0 ? 0 : copies * tessera::snapshot_bytes(training_->checkpoints().state());
}

}  // namespace tessera::runs
