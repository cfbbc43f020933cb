module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.data;
import tessera.parallel;
import tessera.train;
import tessera.hub;
import tessera.encoders;

namespace tessera::runs {
namespace {

/// Rows of a dataset, and the losses of their classes, on one rank.
class ClassRank final : public RankTask {
 public:
  ClassRank(const ClassModel& classes, const Dataset& data, const RunSpec& spec, nn::Module& model,
            const parallel::ParallelPlan& plan, Device device)
      : classes_(classes),
        data_(data),
        history_(data.history()),
        spec_(spec),
        model_(model),
        plan_(plan),
        device_(device) {
    if (plan.sequence_parts() > 1) {
      fail_input({.where = spec.place("train.objective"),
                  .wrong = "a model of classes reads whole texts, and a style splits sequences",
                  .advice = "leave the style out"});
    }
  }

  Tensors rows(const BatchPart& part) override {
    return device_ == meta ? shapes(part.rows)
                           : local(data_.rows(history_, part.step, part.first, part.rows));
  }
  Tensors validation_rows(const BatchPart& part) override {
    return device_ == meta ? shapes(part.rows)
                           : local(data_.validation_rows(part.step, part.first, part.rows));
  }
  StepSums sums(const Tensors& rows) override {
    const Tensor labels = plan_.batch_of(rows.back());
    Tensors inputs;
    for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
      inputs.push_back(plan_.batch_of(rows[i]));
    }
    const Tensor logits = classes_.logits(model_, inputs);
    const Tensor loss = ops::cross_entropy(logits, labels, {.reduction = ops::Reduction::sum});
    const NoGrad constant;
    if (watch_) {
      watch_({.losses = ops::cross_entropy(logits, labels, {.reduction = ops::Reduction::none}),
              .sum = detached(loss)});
    }
    const Tensor right = ops::eq(ops::argmax(logits, -1), labels);
    return {loss, {ops::sum(ops::cast(right, loss.dtype()))}};
  }
  double weight(std::int64_t step, std::int64_t rows) const override {
    return static_cast<double>(device_ == meta || !spec_.tags() ? rows
                                                                : data_.trained(history_, step));
  }
  double validation_weight(std::int64_t batches, std::int64_t rows) const override {
    return static_cast<double>(device_ == meta ? batches * rows : data_.validation_trained());
  }
  Measures measures(std::span<const double> measured) const override {
    return {{"accuracy", measured[0]}};
  }
  RowHistory* history() override { return &history_; }
  bool watch_losses(LossWatch watch) override {
    watch_ = std::move(watch);
    return true;
  }
  std::string text() const override {
    return fmt::format("the class of each {}: {}",
                       data_.has_images() ? "image"
                       : spec_.tags()     ? "word"
                                          : "text",
                       shown(join_words(data_.labels()), 200));
  }

 private:
  Tensors shapes(std::int64_t rows) const {
    if (const encoders::ImageProcessor* const images = classes_.images()) {
      return {empty({rows, 3, images->form().height, images->form().width}, DType::f32, meta),
              empty({rows}, DType::i64, meta)};
    }
    const Dims tokens = {rows, spec_.data.seq_len};
    return {empty(tokens, DType::i64, meta), empty(tokens, DType::i64, meta),
            empty(spec_.tags() ? tokens : Dims{rows}, DType::i64, meta)};
  }
  Tensor on_device(const std::vector<std::int64_t>& values, const Dims& shape) const {
    return ops::to_device(from_values(std::span<const std::int64_t>(values), shape), device_);
  }
  Tensors local(const Batch& batch) const {
    return classes_.images() == nullptr ? texts(batch) : images(batch);
  }
  /// pixel_values, and the class of each row.
  Tensors images(const Batch& batch) const {
    return {ops::to_device(classes_.images()->pixel_values(batch.pixels, batch.rows), device_),
            on_device(batch.targets, {batch.rows})};
  }
  /// Tokens, their mask, and the class of each row or token.
  Tensors texts(const Batch& batch) const {
    std::vector<std::int64_t> mask(batch.inputs.size());
    std::vector<std::int64_t> labels;
    const auto length = static_cast<std::size_t>(batch.seq_len);
    for (std::size_t row = 0; row < batch.lengths.size(); ++row) {
      // A row that completes a validation has no token, and a softmax needs one.
      const auto shown = static_cast<std::size_t>(std::max<std::int64_t>(batch.lengths[row], 1));
      std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(row * length), shown, 1);
      labels.push_back(batch.targets[row * length]);
    }
    const Dims tokens = {batch.rows, batch.seq_len};
    return {on_device(batch.inputs, tokens), on_device(mask, tokens),
            spec_.tags() ? on_device(batch.targets, tokens) : on_device(labels, {batch.rows})};
  }

  const ClassModel& classes_;
  const Dataset& data_;
  RowHistory history_;
  LossWatch watch_;
  const RunSpec& spec_;
  nn::Module& model_;
  const parallel::ParallelPlan& plan_;
  Device device_;
};

/// Error (input): the data's rows are longer than the model takes.
void check_longest(const RunSpec& spec, const ClassModel& model) {
  if (model.longest() > 0 && spec.data.seq_len > model.longest()) {
    fail_input({.where = spec.place("data.seq_len"),
                .wrong = "the model has no positions for texts of this length",
                .expected = fmt::format("at most {}", model.longest()),
                .got = fmt::format("{}", spec.data.seq_len)});
  }
}

/// Of a model of texts. Errors (input): the data are token ids; see check_longest and
/// hub::check_tokenizer_fits.
DataReader text_reader(const RunSpec& spec, ClassModel& model) {
  const auto tokenizer = open_run_tokenizer(spec);
  if (!tokenizer) {
    fail_input({.where = spec.place("data.sources"),
                .wrong = fmt::format("train.objective={} needs labels, and these are token ids",
                                     word_of(spec, "train.objective")),
                .expected = spec.tags() ? "records with 'words' and 'labels'"
                                        : "records with 'text' and 'label'"});
  }
  check_longest(spec, model);
  if (model.vocab() > 0) {
    hub::check_tokenizer_fits(*tokenizer, model.vocab(), spec.model.from, spec.place("model.from"),
                              false);
  }
  const std::int64_t padding = model.padding().value_or(padding_of(*tokenizer));
  model.set_padding(padding);
  return {.tokenizer = tokenizer,
          .vocab = model.vocab() > 0 ? model.vocab() : tokenizer->vocab(),
          .padding = padding};
}

/// Of a model of images. Error (input): a key of texts is given.
DataReader image_reader(const RunSpec& spec, const ClassModel& model) {
  for (const char* const key : {"data.seq_len", "data.tokenizer", "data.tokenizer_options",
                                "data.special_tokens", "data.too_long"}) {
    if (spec.given.contains(key)) {
      fail_input({.where = spec.place(key),
                  .wrong = "only texts have it, and the model takes images",
                  .advice = "remove it"});
    }
  }
  return {.images = model.images()->form(), .image_tokens = model.image_tokens()};
}

}  // namespace

ModelFacts ClassTask::facts() const {
  std::int64_t parameters = 0;
  const std::shared_ptr<nn::Module> model = model_->build();
  for (const nn::ParameterPointer& parameter : nn::all_parameters(*model)) {
    parameters += parameter->value.numel();
  }
  return {.family = model_->family(), .parameters = parameters, .text = model_->text()};
}

std::shared_ptr<nn::Module> ClassTask::model(const RunSpec& /*spec*/) const {
  return model_->build();
}

bool ClassTask::set_activation_checkpointing(nn::Module& model, bool enabled) const {
  model_->set_activation_checkpointing(model, enabled);
  return true;
}

void ClassTask::initialize(const RunSpec& /*spec*/, nn::Module& model) const {
  model_->initialize(model);
}

std::unique_ptr<RankTask> ClassTask::on_rank(const RunSpec& spec, const DeviceMesh& /*mesh*/,
                                             nn::Module& model, const parallel::ParallelPlan& plan,
                                             Device device) const {
  return std::make_unique<ClassRank>(*model_, data(), spec, model, plan, device);
}

Fingerprint ClassTask::fingerprint(const RunSpec& spec) const {
  Fingerprint values = class_fingerprint(spec, model_->config_text(), data());
  if (model_->images() != nullptr) {
    values["data.images"] = json_text(parse_json(model_->images()->text()));
  }
  return values;
}

std::vector<std::pair<std::string, std::string>> ClassTask::checkpoint_meta() const {
  if (model_->images() != nullptr) {
    return {{"model", model_->config_text()},
            {std::string(encoders::image_processor_meta), model_->images()->text()}};
  }
  return {{"model", model_->config_text()}, tokenizer_meta()};
}

std::shared_ptr<const ClassTask> open_class_task(const RunSpec& spec,
                                                 const ContinuedRows& continued) {
  const std::shared_ptr<ClassModel> model = at_key(spec, "model.from", [&] {
    return open_class_model(spec.model.from, spec.tags() ? ClassOf::token : ClassOf::row);
  });
  const DataReader reader =
      model->images() != nullptr ? image_reader(spec, *model) : text_reader(spec, *model);
  const auto data = at_key(spec, "data", [&] {
    return std::make_shared<const Dataset>(spec, reader, model->labels(), continued);
  });
  at_key(spec, "data.labels", [&] { model->set_labels(data->labels()); });
  return std::make_shared<const ClassTask>(model, data);
}

}  // namespace tessera::runs
