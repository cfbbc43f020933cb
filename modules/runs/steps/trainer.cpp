module;
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.plugin;
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

namespace tessera::runs {
Trainer::Trainer(const Run& run, Device device) : Trainer(run, setup_of(run), device, {}) {}

Trainer::Trainer(const Run& run, const StepSetup& setup, std::span<const Override> replaced)
    : Trainer(run, setup, meta, replaced) {}

Trainer::Trainer(const Run& run, const StepSetup& setup, Device device,
                 std::span<const Override> replaced)
    : run_(run), setup_(setup), device_(device) {
  set_seed(static_cast<std::uint64_t>(run.config.train.seed));
  model_ = training_model(run.shape, run.config, [&](nn::Module& model) {
    for (const Override& override : replaced) {
      replace_modules(model, override);
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
  if (device_ != meta && plan_->sequence_parts() > 1) {
    std::vector<std::int64_t> places(static_cast<std::size_t>(run.config.data.seq_len));
    std::iota(places.begin(), places.end(), 0);
    const Dims shape = {1, run.config.data.seq_len};
    first_token_ = plan_->sequence_part(from_values(std::span<const std::int64_t>(places), shape))
                       .data<std::int64_t>()[0];
  }
  if (needs_copy(run.config, *model_)) {
    copy_ = std::make_unique<FrozenCopy>(run, setup_.mesh);
  }
  if (device_ != meta) {  // where shapes and layouts are all that there is
    set_first_values();
  }
  objective_ = make_objective(run.config, *model_, *plan_, copy_.get());
  expert_loads_ = std::make_unique<ExpertLoads>(*model_, *plan_);
  model_->set_activation_checkpointing(run.config.train.activation_checkpointing);
  training_ = std::make_unique<Training>(
      *model_, *plan_,
      make_optimizer(run.config, nn::all_parameters(*model_), nn::whole_parameters(*model_)),
      make_schedule(run.config));
  training_->checkpoints().set_base(checkpoint_base(run, *model_));
  if (copy_) {
    training_->add_model(copy_->model());
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

void Trainer::set_first_values() {
  const ModelConfig& config = run_.config.model;
  plan_->materialize(device_);
  if (config.from.empty()) {
    nn::initialize(*model_);
  } else {
    hub::load_model_weights(
        hub::FolderWeights(config.from, run_.shape,
                           {.adds_tokens = config.adds_tokens(), .base = config.base})
            .source(),
        *model_);
    nn::initialize_updates(*model_);
  }
  plan_->initialized();
  if (!config.adapter.empty()) {
    hub::load_peft(config.adapter, *model_);
  }
  if (copy_) {
    copy_->fill(*model_, device_);
  }
}

std::size_t Trainer::shared_bytes() const {
  const std::size_t own = tessera::shared_bytes(*plan_, nn::all_parameters(*model_));
  return copy_ ? own + tessera::shared_bytes(copy_->plan(), nn::all_parameters(copy_->model()))
               : own;
}

Batch Trainer::no_data(std::int64_t rows) const {
  Batch batch;
  batch.rows = rows * run_.config.row_sequences();
  batch.seq_len = run_.config.data.seq_len;
  return batch;
}

Tensors Trainer::rows_of(const Batch& batch) const {
  const std::int64_t length = batch.seq_len / plan_->sequence_parts();
  const auto rows_of = [&](const std::vector<std::int64_t>& values) {
    if (device_ == meta) {
      return plan_->sequence_part(empty({batch.rows, batch.seq_len}, DType::i64, meta));
    }
    std::vector<std::int64_t> part;  // cut here: reading rows is no call of a step
    part.reserve(static_cast<std::size_t>(batch.rows * length));
    for (std::int64_t row = 0; row < batch.rows; ++row) {
      const auto first = values.begin() + row * batch.seq_len + first_token_;
      part.insert(part.end(), first, first + length);
    }
    return ops::to_device(from_values(std::span<const std::int64_t>(part), {batch.rows, length}),
                          device_);
  };
  Tensors rows = {rows_of(batch.inputs), rows_of(batch.targets)};
  if (run_.config.data.packs()) {
    rows.push_back(rows_of(batch.documents));
    rows.push_back(rows_of(batch.positions));
  }
  return rows;
}

StepResult Trainer::step(bool last) { return step(setup_.rows, last); }

StepResult Trainer::step(const StepRows& rows, bool last) {
  if (placed_ && training_->captured().program() == nullptr) {
    capture_ahead();
  }
  const std::int64_t tokens = rows.all * run_.config.row_sequences() * run_.config.data.seq_len;
  const std::int64_t trained = device_ == meta ? tokens : run_.data->trained(done());
  return training_->step({.rows = rows.all,
                          .micro_rows = rows.micro,
                          .weight = objective_->weight(rows.all, trained),
                          .tokens = tokens,
                          .parts = setup_.parts,
                          .last_train_step = last},
                         functions([&](const BatchPart& m) {
                           return device_ == meta ? no_data(m.rows)
                                                  : run_.data->rows(m.step, m.first, m.rows);
                         }));
}

StepFunctions Trainer::functions(std::function<Batch(const BatchPart&)> batch) const {
  return {.rows = [this, batch = std::move(batch)](
                      const BatchPart& part) { return rows_of(batch(part)); },
          .loss_sum = [this](const Tensors& rows) { return objective_->sums(rows); },
          .states = [this](const Tensors& rows) { return objective_->states(rows); }};
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
  // Passes and transformations are run where the program is used.
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
  const std::int64_t batches = run_.data->validation_batches();
  if (batches == 0) {
    return std::nullopt;
  }
  if (placed_ && training_->captured().program() == nullptr) {
    capture_ahead();
  }
  const Evaluation evaluation =
      training_->evaluate(batches, evaluation_batch(batches), functions([&](const BatchPart& m) {
                            return run_.data->validation_rows(m.step, m.first, m.rows);
                          }));
  return Validation{evaluation.loss, objective_->measures(evaluation.measured)};
}

StepBatch Trainer::evaluation_batch(std::int64_t batches) const {
  const std::int64_t trained =
      device_ == meta ? batches * run_.config.step_tokens() : run_.data->validation_trained();
  return {.rows = setup_.rows.all,
          .micro_rows = setup_.rows.micro,
          .weight = objective_->weight(batches * setup_.rows.all, trained)};
}

void Trainer::record_evaluation(OneRank& into) {
  into.evaluation = training_->captured_evaluation().record(
      evaluation_batch(1), functions([&](const BatchPart& m) { return no_data(m.rows); }));
}

void Trainer::resume(const KeptStates& kept) {
  const std::string& folder = run_.config.checkpoint.folder;
  const std::vector<std::string> saved =
      folder.empty() ? std::vector<std::string>{} : checkpoints_in(folder);
  training_->checkpoints().load(*kept.open(), saved.empty() ? std::string() : saved.front());
}

RunCheckpoints Trainer::checkpoints(std::function<void(const std::string&)> say, KeptStates* kept) {
  const CheckpointConfig& config = run_.config.checkpoint;
  if (const auto& tokenizer = run_.data->tokenizer();
      tokenizer && !config.folder.empty() && collective::World::current().rank() == 0) {
    hub::keep_tokenizer(config.folder, *tokenizer);
  }
  const auto meta_data = [&run = run_, updates = hub::to_json(hub::updates_of(*model_))] {
    return fmt::format(
        R"({{"written_by": "{}", "config": {}, "model": {}, "generation": {}, "fingerprint": {}, "low_rank_updates": {}, "tokenizer": {}}})",
        plugin::host_version(), to_json(run.config), hub::hub_config(run.shape),
        hub::generation_config(run.shape), to_json(run.fingerprint), updates,
        to_json(run.data->tokenizer()));
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
