export module tessera.hub:classifier_folder;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import :model_shape;

// Decoders that tell the classes of texts, as transformers stores them: XForSequenceClassification.

export namespace tessera::hub {

/// What a config.json says of such a decoder.
struct ClassifierConfig {
  ModelShape model = {};                 // without a head for tokens
  std::vector<std::string> labels = {};  // by their numbers; empty: it has no head for classes
  /// pad_token_id: the row's class is that of its last token that is not this one; -1: not known.
  std::int64_t padding = -1;

  /// The class in transformers. Error (input) that begins with `name`: the family has none.
  std::string architecture(const std::string& name) const;
};

/// Reads a config.json in Hugging Face's form: of the family's class for classes, or of that of the
/// next token, whose head is left out. `name` begins the errors. Errors (input): those of
/// parse_hub_config; transformers has no such class of this family; one label, or several of a row
/// (problem_type).
ClassifierConfig parse_classifier_config(std::string_view text, const std::string& name);

/// The classifier of a checkpoint, by its meta data; nothing: its model is another one. Errors
/// (input): as above.
std::optional<ClassifierConfig> stored_classifier(std::string_view meta,
                                                  const std::string& checkpoint);

/// config.json in Hugging Face's words: parse_classifier_config's inverse. `labels` must not be
/// empty.
std::string classifier_config_text(const ClassifierConfig& config);

/// A folder of transformers with such a decoder: config.json and safetensors.
class ClassifierFolder {
 public:
  /// Reads config.json and the headers of the weights. Errors (input): the folder has no such
  /// files; those of parse_classifier_config; more layers than the weights can have.
  explicit ClassifierFolder(const std::string& folder);

  const ClassifierConfig& config() const { return config_; }
  /// It is to tell these, by a head that is not the folder's. Error (input): fewer than two labels,
  /// or two that are equal.
  void set_labels(std::vector<std::string> labels);
  void set_padding(std::int64_t padding) { config_.padding = padding; }
  /// Whether the head is not the folder's.
  bool has_new_head() const { return new_head_; }

  /// The model on the meta device. Error (input) that names all tensors that are missing, or too
  /// many, or have another shape than config.json says.
  std::shared_ptr<nn::DecoderClassifier> build() const;
  /// Gives the parameters, which have memory and any layout, the folder's values; each rank reads
  /// its own parts. A head that is not the folder's keeps the values that it has. Error (input): as
  /// above.
  void load(nn::DecoderClassifier& model) const;

 private:
  /// The parameters that the folder has.
  StateDict state_of(nn::DecoderClassifier& model) const;

  std::string folder_;
  ClassifierConfig config_;
  bool new_head_ = false;
  std::shared_ptr<const TensorSource> tensors_;
};

/// Writes config.json and model.safetensors as transformers does. `parameters`: the model's by
/// their names after `prefix`, such as those of a checkpoint ("model."). Errors: see
/// export_weights.
void write_classifier_folder(const ClassifierConfig& config, const TensorSource& parameters,
                             const std::string& folder, const std::string& prefix = "");

}  // namespace tessera::hub
