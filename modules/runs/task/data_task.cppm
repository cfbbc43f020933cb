export module tessera.runs:data_task;

import tessera.base;
import :spec;
import :dataset;
import :task;
import :training_run;

// The tasks of configs: a model, and the rows of files.

export namespace tessera::runs {

/// What is told of a model before its run.
struct ModelFacts {
  std::string family;
  std::int64_t parameters = 0;
  std::string text;        // "dim 256, 8 layers, ..."
  std::int64_t vocab = 0;  // of its tokens
};

/// A model with the data of a config.
class DataTask : public Task {
 public:
  explicit DataTask(std::shared_ptr<const Dataset> data) : data_(std::move(data)) {}

  const Dataset& data() const { return *data_; }
  virtual ModelFacts facts() const = 0;
  /// Whether the model continues texts.
  virtual bool writes_texts() const { return false; }
  std::int64_t validation_batches() const override { return data_->validation_batches(); }
  /// The tokenizer.
  void keep_files(const std::string& folder) const override;

 protected:
  /// What a checkpoint has of the tokenizer: "tokenizer" with its JSON text.
  std::pair<std::string, std::string> tokenizer_meta() const;

 private:
  std::shared_ptr<const Dataset> data_;
};

/// Opens what the objective of a config trains, and its data. Errors (input), each with the key:
/// see open_language_task and open_class_task.
std::shared_ptr<const DataTask> open_data_task(const RunSpec& spec,
                                               const ContinuedRows& continued = {});

/// The task of a run that a config describes. Error: a program's own task.
const DataTask& data_task_of(const Run& run);

}  // namespace tessera::runs
