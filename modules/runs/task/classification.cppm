export module tessera.runs:classification;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.nn;
import tessera.parallel;
import :spec;
import :class_model;
import :dataset;
import :data_task;
import :fingerprint;
import :task;

// The task of train.objective=classification: the class of each text or image.

export namespace tessera::runs {

/// A model that tells classes, and texts or images with labels. A row is a text of at most
/// data.seq_len tokens, with padding, or an image; what is minimised is the mean of the rows'
/// losses.
class ClassTask final : public DataTask {
 public:
  ClassTask(std::shared_ptr<const ClassModel> model, std::shared_ptr<const Dataset> data)
      : DataTask(std::move(data)), model_(std::move(model)) {}

  ModelFacts facts() const override;
  std::shared_ptr<nn::Module> model(const RunSpec& spec) const override;
  bool set_activation_checkpointing(nn::Module& model, bool enabled) const override;
  /// From model.from; a new head gets random values.
  void initialize(const RunSpec& spec, nn::Module& model) const override;
  /// Error (input): sequences are split over ranks.
  std::unique_ptr<RankTask> on_rank(const RunSpec& spec, const DeviceMesh& mesh, nn::Module& model,
                                    const parallel::ParallelPlan& plan,
                                    Device device) const override;
  Fingerprint fingerprint(const RunSpec& spec) const override;
  /// "model", and "tokenizer" or encoders::image_processor_meta.
  std::vector<std::pair<std::string, std::string>> checkpoint_meta() const override;

 private:
  std::shared_ptr<const ClassModel> model_;
};

/// Opens the model of model.from and the labelled texts or images of a config. Errors (input), each
/// with the key: see open_class_model and Dataset; longer rows than the model takes; keys of texts
/// beside images.
std::shared_ptr<const ClassTask> open_class_task(const RunSpec& spec,
                                                 const ContinuedRows& continued = {});

}  // namespace tessera::runs
