module;
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.parallel;
import tessera.train;
import tessera.hub;

namespace tessera::runs {
namespace {

/// Rows of a dataset, and what is minimised over them, on one rank.
class LanguageRank final : public RankTask {
 public:
  LanguageRank(const LanguageTask& task, const RunSpec& spec, const DeviceMesh& mesh,
               nn::LanguageModel& model, const parallel::ParallelPlan& plan, Device device)
      : spec_(spec),
        data_(task.data()),
        history_(data_.history()),
        model_(model),
        plan_(plan),
        device_(device) {
    if (device_ != meta && plan_.sequence_parts() > 1) {
      std::vector<std::int64_t> places(static_cast<std::size_t>(spec.data.seq_len));
      std::iota(places.begin(), places.end(), 0);
      const Dims shape = {1, spec.data.seq_len};
      first_token_ = plan_.sequence_part(from_values(std::span<const std::int64_t>(places), shape))
                         .data<std::int64_t>()[0];
    }
    if (needs_copy(spec, model)) {
      copy_ = std::make_unique<FrozenCopy>(task, spec, mesh);
    }
    objective_ = make_objective(spec, model, plan, copy_.get());
  }

  void initialized() override {
    if (!spec_.model.adapter.empty()) {
      hub::load_peft(spec_.model.adapter, model_);
    }
    if (copy_) {
      copy_->fill(model_, device_);
    }
  }
  Tensors rows(const BatchPart& part) override {
    return device_ == meta ? local(no_data(part.rows))
                           : local(data_.rows(history_, part.step, part.first, part.rows));
  }
  Tensors validation_rows(const BatchPart& part) override {
    return device_ == meta ? local(no_data(part.rows))
                           : local(data_.validation_rows(part.step, part.first, part.rows));
  }
  StepSums sums(const Tensors& rows) override { return objective_->sums(rows); }
  Tensor states(const Tensors& rows) override { return objective_->states(rows); }
  double weight(std::int64_t step, std::int64_t rows) const override {
    return objective_->weight(rows, device_ == meta ? tokens(rows) : data_.trained(history_, step));
  }
  double validation_weight(std::int64_t batches, std::int64_t rows) const override {
    const std::int64_t trained =
        device_ == meta ? batches * spec_.step_tokens() : data_.validation_trained();
    return objective_->weight(batches * rows, trained);
  }
  Measures measures(std::span<const double> measured) const override {
    return objective_->measures(measured);
  }
  std::string text() const override { return objective_->text(); }
  const FrozenCopy* frozen_copy() const override { return copy_.get(); }
  RowHistory* history() override { return &history_; }
  bool watch_losses(LossWatch watch) override {
    objective_->watch_losses(std::move(watch));
    return true;
  }

 private:
  std::int64_t tokens(std::int64_t rows) const {
    return rows * spec_.row_sequences() * spec_.data.seq_len;
  }
  Batch no_data(std::int64_t rows) const {
    return {.rows = rows * spec_.row_sequences(), .seq_len = spec_.data.seq_len};
  }
  /// Inputs, targets and, packed, the two of RowDocuments; this rank's part of each sequence.
  Tensors local(const Batch& batch) const {
    const std::int64_t length = batch.seq_len / plan_.sequence_parts();
    const auto part_of = [&](const std::vector<std::int64_t>& values) {
      if (device_ == meta) {
        return plan_.sequence_part(empty({batch.rows, batch.seq_len}, DType::i64, meta));
      }
      std::vector<std::int64_t> part;  // cut here: reading rows is not a call of a step
      part.reserve(static_cast<std::size_t>(batch.rows * length));
      for (std::int64_t row = 0; row < batch.rows; ++row) {
        const auto first = values.begin() + row * batch.seq_len + first_token_;
        part.insert(part.end(), first, first + length);
      }
      return ops::to_device(from_values(std::span<const std::int64_t>(part), {batch.rows, length}),
                            device_);
    };
    Tensors rows = {part_of(batch.inputs), part_of(batch.targets)};
    if (spec_.data.packs()) {
      rows.push_back(part_of(batch.documents));
      rows.push_back(part_of(batch.positions));
    }
    return rows;
  }

  const RunSpec& spec_;
  const Dataset& data_;
  RowHistory history_;
  nn::LanguageModel& model_;
  const parallel::ParallelPlan& plan_;
  Device device_;
  std::int64_t first_token_ = 0;  // of a row, in this rank's part
  std::unique_ptr<FrozenCopy> copy_;
  std::unique_ptr<Objective> objective_;
};

}  // namespace

std::shared_ptr<nn::Module> LanguageTask::model(const RunSpec& spec) const {
  auto model = hub::make_model(shape_, spec.model.dropout);
  if (spec.data.packs() && !model->takes_documents()) {
    fail_input({.where = spec.place("data.packing"),
                .wrong = fmt::format("models of the family '{}' read a row as one document",
                                     shape_.family),
                .advice = "set data.packing=none"});
  }
  return model;
}

void LanguageTask::initialize(const RunSpec& spec, nn::Module& model) const {
  const ModelConfig& config = spec.model;
  if (config.from.empty()) {
    nn::initialize(model);
    return;
  }
  hub::load_model_weights(
      hub::FolderWeights(config.from, shape_,
                         {.adds_tokens = config.adds_tokens(), .base = config.base})
          .source(),
      model);
  nn::initialize_updates(model);
}

std::unique_ptr<RankTask> LanguageTask::on_rank(const RunSpec& spec, const DeviceMesh& mesh,
                                                nn::Module& model,
                                                const parallel::ParallelPlan& plan,
                                                Device device) const {
  return std::make_unique<LanguageRank>(*this, spec, mesh, language_model(model), plan, device);
}

Fingerprint LanguageTask::fingerprint(const RunSpec& spec) const {
  return fingerprint_of(spec, shape_, data());
}

Fingerprint LanguageTask::earlier_values(const Fingerprint& own) const {
  return runs::earlier_values(shape_, own);
}

std::vector<std::pair<std::string, std::string>> LanguageTask::checkpoint_meta() const {
  return {{"model", hub::hub_config(shape_)},
          {"generation", hub::generation_config(shape_)},
          tokenizer_meta()};
}

ModelFacts LanguageTask::facts() const {
  return {.family = shape_.family,
          .parameters = shape_.parameters(),
          .text = shape_.text(),
          .vocab = shape_.vocab};
}

std::shared_ptr<const LanguageTask> open_language_task(const RunSpec& spec,
                                                       const ContinuedRows& continued) {
  if (spec.classifies()) {
    fail_input({.where = spec.place("train.objective"),
                .wrong = "this command knows models of texts only, which classification does not "
                         "train",
                .advice = "use 'tessera train', with --dry-run to see what the run needs"});
  }
  const auto tokenizer = open_run_tokenizer(spec);
  hub::ModelShape shape = at_key(spec, spec.model.from.empty() ? "model" : "model.from",
                                 [&] { return model_shape(spec, tokenizer); });
  return at_key(spec, "data", [&] {
    auto data = std::make_shared<const Dataset>(
        spec, DataReader{.tokenizer = tokenizer, .vocab = shape.vocab}, std::vector<std::string>{},
        continued);
    data->check_all();
    return std::make_shared<const LanguageTask>(std::move(shape), std::move(data));
  });
}

const LanguageTask& language_of(const Run& run) {
  const auto* const task = dynamic_cast<const LanguageTask*>(run.task.get());
  require(task != nullptr, "the run's task is not a language model on texts");
  return *task;
}

nn::LanguageModel& language_model(nn::Module& model) {
  nn::LanguageModel* const language = nn::as_language_model(model);
  require(language != nullptr, "the run's model is not a LanguageModel");
  return *language;
}

}  // namespace tessera::runs
