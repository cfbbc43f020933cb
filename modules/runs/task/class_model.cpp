module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.checkpoint;
import tessera.exported;
import tessera.encoders;

namespace tessera::runs {
namespace {

class EncoderClasses final : public ClassModel {
 public:
  explicit EncoderClasses(const std::string& from) : folder_(from) {
    if (shape().takes_images()) {
      fail_input({.thing = from,
                  .wrong = "the encoder takes images, and the data of a config are texts",
                  .advice = "train it in a program of your own (docs/encoders.md)"});
    }
  }

  std::vector<std::string> labels() const override {
    return shape().head == encoders::EncoderHead::classes ? folder_.config().labels
                                                          : std::vector<std::string>();
  }
  void set_labels(const std::vector<std::string>& labels) override {
    if (labels != this->labels()) {
      folder_.set_labels(labels);
    }
  }
  std::string family() const override { return folder_.config().family; }
  std::string text() const override {
    return fmt::format("dim {}, {} layers, {} heads, ffn_dim {}, vocabulary {}; {} classes{}",
                       shape().dim, shape().layers, shape().heads, shape().ffn_dim, shape().vocab,
                       shape().classes, folder_.has_new_head() ? " by a new head" : "");
  }
  std::int64_t vocab() const override { return shape().vocab; }
  std::int64_t longest() const override { return shape().max_positions; }
  std::string config() const override { return encoders::encoder_config_text(folder_.config()); }

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
  Tensor logits(nn::Module& model, const Tensor& tokens, const Tensor& mask) const override {
    return model(Tensors{tokens, mask})[0];
  }

 private:
  const encoders::EncoderShape& shape() const { return folder_.config().shape; }
  static encoders::EncoderModel& encoder(nn::Module& model) {
    return dynamic_cast<encoders::EncoderModel&>(model);
  }

  encoders::EncoderFolder folder_;
};

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
  std::string config() const override { return config_; }

  std::shared_ptr<nn::Module> build() const override {
    return std::make_shared<exported::ExportedModel>(graph_, *file_);
  }
  void initialize(nn::Module& model) const override { program(model).load(*file_); }
  void set_activation_checkpointing(nn::Module& model, bool enabled) const override {
    program(model).set_activation_checkpointing(enabled);
  }
  Tensor logits(nn::Module& model, const Tensor& tokens, const Tensor& mask) const override {
    Tensors inputs(types_.size());
    inputs[static_cast<std::size_t>(places_.tokens)] = tokens;
    if (places_.mask >= 0) {
      const auto place = static_cast<std::size_t>(places_.mask);
      inputs[place] = ops::cast(mask, types_[place]);
    }
    return model(inputs)[static_cast<std::size_t>(places_.logits)];
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

std::shared_ptr<ClassModel> open_class_model(const std::string& from) {
  if (exported::is_program(from)) {
    return std::make_shared<ProgramClasses>(from);
  }
  return std::make_shared<EncoderClasses>(from);
}

}  // namespace tessera::runs
