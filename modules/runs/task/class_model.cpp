module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.hub;
import tessera.exported;
import tessera.encoders;

namespace tessera::runs {
namespace {

class EncoderClasses final : public ClassModel {
 public:
  EncoderClasses(const std::string& from, ClassOf of)
      : folder_(from),
        head_(of == ClassOf::row ? encoders::EncoderHead::classes
                                 : encoders::EncoderHead::token_classes) {
    if (shape().takes_images() && of == ClassOf::token) {
      fail_input({.thing = from,
                  .wrong = "the encoder takes images, which have no words",
                  .advice = "set train.objective = \"classification\""});
    }
    if (shape().takes_images()) {
      images_.emplace(encoders::image_processor_of(from, shape()));
    }
  }

  std::vector<std::string> labels() const override {
    return shape().head == head_ ? folder_.config().labels : std::vector<std::string>();
  }
  void set_labels(const std::vector<std::string>& labels) override {
    if (labels != this->labels()) {
      folder_.set_labels(labels, head_);
    }
  }
  std::string family() const override { return folder_.config().family; }
  std::string text() const override {
    const std::string reads = images_ ? fmt::format("images of {0} x {0} in patches of {1} x {1}",
                                                    shape().image_size, shape().patch_size)
                                      : fmt::format("vocabulary {}", shape().vocab);
    return fmt::format("dim {}, {} layers, {} heads, ffn_dim {}, {}; {} classes{}", shape().dim,
                       shape().layers, shape().heads, shape().ffn_dim, reads, shape().classes,
                       folder_.has_new_head() ? " by a new head" : "");
  }
  std::int64_t vocab() const override { return shape().vocab; }
  std::int64_t longest() const override { return shape().max_positions; }
  const encoders::ImageProcessor* images() const override { return images_ ? &*images_ : nullptr; }
  std::int64_t image_tokens() const override { return images_ ? shape().image_positions() : 0; }
  std::string config_text() const override {
    return encoders::encoder_config_text(folder_.config());
  }

  std::shared_ptr<nn::Module> build() const override { return folder_.build(); }
  void initialize(nn::Module& model) const override {
    if (folder_.has_new_head()) {
      nn::initialize(model);
    }
    folder_.load(encoder(model));
  }
  void set_activation_checkpointing(nn::Module& model, bool enabled) const override {
    encoder(model).set_activation_checkpointing(enabled);
  }
  Tensor logits(nn::Module& model, const Tensors& inputs) const override {
    return model(inputs)[0];
  }

 private:
  const encoders::EncoderShape& shape() const { return folder_.config().shape; }
  static encoders::EncoderModel& encoder(nn::Module& model) {
    return dynamic_cast<encoders::EncoderModel&>(model);
  }

  encoders::EncoderFolder folder_;
  encoders::EncoderHead head_;
  std::optional<encoders::ImageProcessor> images_;
};

class DecoderClasses final : public ClassModel {
 public:
  explicit DecoderClasses(const std::string& from) : folder_(from) {}

  std::vector<std::string> labels() const override { return config().labels; }
  void set_labels(const std::vector<std::string>& labels) override {
    if (labels != config().labels) {
      folder_.set_labels(labels);
    }
  }
  std::string family() const override { return config().model.family; }
  std::string text() const override {
    return fmt::format("{}; {} classes{}", config().model.text(), config().labels.size(),
                       folder_.has_new_head() ? " by a new head" : "");
  }
  std::int64_t vocab() const override { return config().model.vocab; }
  std::optional<std::int64_t> padding() const override {
    return config().padding < 0 ? std::nullopt : std::optional(config().padding);
  }
  void set_padding(std::int64_t token) override { folder_.set_padding(token); }
  std::int64_t longest() const override {
    return hub::family_of(config().model).longest_sequence(hub::sizes_of(config().model));
  }
  std::string config_text() const override { return hub::classifier_config_text(config()); }

  std::shared_ptr<nn::Module> build() const override { return folder_.build(); }
  void initialize(nn::Module& model) const override {
    if (folder_.has_new_head()) {
      nn::initialize(model);
    }
    folder_.load(decoder(model));
  }
  void set_activation_checkpointing(nn::Module& model, bool enabled) const override {
    decoder(model).set_activation_checkpointing(enabled);
  }
  Tensor logits(nn::Module& model, const Tensors& inputs) const override {
    return model(Tensors{inputs[0]})[0];  // a row's end is known by its tokens
  }

 private:
  const hub::ClassifierConfig& config() const { return folder_.config(); }
  static nn::DecoderClassifier& decoder(nn::Module& model) {
    return dynamic_cast<nn::DecoderClassifier&>(model);
  }

  hub::ClassifierFolder folder_;
};

/// Whether a folder's model is an encoder, by the family that its config.json names.
bool is_encoder(const std::string& folder) {
  const ParsedJson json =
      read_json_object((std::filesystem::path(folder) / "config.json").string());
  const auto type = json.value.find("model_type");
  const std::vector<std::string> families = encoders::encoder_families();
  return json.problem.empty() && type != json.value.end() && type->is_string() &&
         std::ranges::find(families, type->get<std::string>()) != families.end();
}

class ProgramClasses final : public ClassModel {
 public:
  explicit ProgramClasses(const std::string& path)
      : path_(path),
        file_(checkpoint_format("pt2").open(path)),
        graph_(exported::read_exported_graph(*file_)),
        places_(exported::class_program(graph_)),
        config_(exported::class_program_config(path)) {
    for (const exported::GraphInput& input : graph_.inputs) {
      if (input.role == exported::InputRole::user) {
        types_.push_back(graph_.values[static_cast<std::size_t>(input.value)].dtype);
      }
    }
  }

  std::vector<std::string> labels() const override { return {}; }
  void set_labels(const std::vector<std::string>& labels) override {
    if (std::ssize(labels) != places_.classes) {
      fail_input({.thing = path_,
                  .wrong = "the program tells another number of classes than the data have labels",
                  .expected = fmt::format("{} labels", places_.classes),
                  .got = fmt::format("{}", labels.size()),
                  .advice = "name the classes in data.labels, in the order of the logits"});
    }
  }
  std::string family() const override { return std::string(exported::program_family_name); }
  std::string text() const override {
    return fmt::format("a program of torch.export; {} classes", places_.classes);
  }
  std::int64_t vocab() const override { return 0; }
  std::int64_t longest() const override {
    return places_.length.high < exported::DimRange::unbounded ? places_.length.high : 0;
  }
  std::string config_text() const override { return config_; }

  std::shared_ptr<nn::Module> build() const override {
    return std::make_shared<exported::ExportedModel>(graph_, *file_);
  }
  void initialize(nn::Module& model) const override { program(model).load(*file_); }
  void set_activation_checkpointing(nn::Module& model, bool enabled) const override {
    program(model).set_activation_checkpointing(enabled);
  }
  Tensor logits(nn::Module& model, const Tensors& inputs) const override {
    Tensors all(types_.size());
    all[static_cast<std::size_t>(places_.tokens)] = inputs[0];
    if (places_.mask >= 0) {
      const auto place = static_cast<std::size_t>(places_.mask);
      all[place] = ops::cast(inputs[1], types_[place]);
    }
    return model(all)[static_cast<std::size_t>(places_.logits)];
  }

 private:
  static exported::ExportedModel& program(nn::Module& model) {
    return dynamic_cast<exported::ExportedModel&>(model);
  }

  std::string path_;
  std::unique_ptr<TensorSource> file_;
  exported::ExportedGraph graph_;
  exported::ClassProgram places_;
  std::string config_;
  std::vector<DType> types_;  // of the inputs
};

}  // namespace

std::shared_ptr<ClassModel> open_class_model(const std::string& from, ClassOf of) {
  const bool program = exported::is_program(from);
  const bool encoder = !program && is_encoder(from);
  if (of == ClassOf::token && !encoder) {
    fail_input({.thing = from,
                .wrong = "only encoders tell the classes of tokens",
                .expected = "a folder of bert or modernbert",
                .advice = "set train.objective = \"classification\""});
  }
  if (program) {
    return std::make_shared<ProgramClasses>(from);
  }
  if (encoder) {
    return std::make_shared<EncoderClasses>(from, of);
  }
  return std::make_shared<DecoderClasses>(from);
}

}  // namespace tessera::runs
