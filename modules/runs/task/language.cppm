export module tessera.runs:language;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.nn;
import tessera.parallel;
import tessera.checkpoint;
import tessera.hub;
import :spec;
import :dataset;
import :fingerprint;
import :task;
import :data_task;
import :training_run;

// The task of a config: a language model on texts, for next tokens or preferences.

export namespace tessera::runs {

/// A language model of a family that is known by name, and its data.
class LanguageTask final : public DataTask {
 public:
  LanguageTask(hub::ModelShape shape, std::shared_ptr<const Dataset> data)
      : DataTask(std::move(data)), shape_(std::move(shape)) {}

  const hub::ModelShape& shape() const { return shape_; }
  ModelFacts facts() const override;
  bool writes_texts() const override { return true; }

  /// A LanguageModel.
  std::shared_ptr<nn::Module> model(const RunSpec& spec) const override;
  /// From model.from, or initial values.
  void initialize(const RunSpec& spec, nn::Module& model) const override;
  std::unique_ptr<RankTask> on_rank(const RunSpec& spec, const DeviceMesh& mesh, nn::Module& model,
                                    const parallel::ParallelPlan& plan,
                                    Device device) const override;
  Fingerprint fingerprint(const RunSpec& spec) const override;
  Fingerprint earlier_values(const Fingerprint& own) const override;
  /// "model", "generation" and "tokenizer".
  std::vector<std::pair<std::string, std::string>> checkpoint_meta() const override;
  /// The weights of model.from that are not trained. Nothing is left out with checkpoint.weights =
  /// "all", and where model.from is a checkpoint that leaves out weights itself or has
  /// updates beside them. Null: without model.from.
  std::shared_ptr<const CheckpointBase> checkpoint_base(const RunSpec& spec,
                                                        const std::string& base_hash,
                                                        nn::Module& model) const override;
  /// The folders of model.from and model.adapter.
  void check_files(const RunSpec& spec, nn::Module& model, bool values,
                   const std::string& base_hash) const override;

 private:
  hub::ModelShape shape_;
};

/// Opens the model's sizes and the data of a config. Errors (input), each with the key: see
/// model_shape and Dataset; another objective than one of language models.
std::shared_ptr<const LanguageTask> open_language_task(const RunSpec& spec,
                                                       const ContinuedRows& continued = {});

/// The task of a run that a config describes. Error: a program's own task.
const LanguageTask& language_of(const Run& run);
/// The model as one of next tokens. Error: it is none.
nn::LanguageModel& language_model(nn::Module& model);

}  // namespace tessera::runs
