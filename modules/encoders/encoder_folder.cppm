export module tessera.encoders:encoder_folder;

import tessera.base;
import tessera.tensor;
import tessera.checkpoint;
import tessera.nn;
import :encoder;
import :encoder_model;
import :encoder_config;

export namespace tessera::encoders {

/// A folder of transformers with an encoder: config.json and safetensors.
class EncoderFolder {
 public:
  /// Reads config.json and the headers of the weights. Errors (input): the folder has no such
  /// files; those of parse_encoder_config; more layers than the weights can have.
  explicit EncoderFolder(const std::string& folder);

  const EncoderConfig& config() const { return config_; }
  /// The model becomes a classifier with these labels, of rows or of tokens, whose head is not the
  /// folder's. Error (input): see with_labels().
  void set_labels(std::vector<std::string> labels, EncoderHead head = EncoderHead::classes);

  /// The model on the meta device. Error (input) that names all tensors that are missing, or too
  /// many, or have another shape than config.json says.
  std::shared_ptr<EncoderModel> build() const;
  /// Whether the head is not the folder's.
  bool has_new_head() const { return new_head_; }
  /// Gives the parameters, which have memory and any layout, the folder's values; each rank reads
  /// its own parts. A head that is not the folder's keeps the values that it has: initialise it
  /// first. Error (input): as above; a value is NaN or infinite.
  void load(EncoderModel& model) const;

 private:
  /// The parameters that the folder has.
  StateDict state_of(EncoderModel& model) const;

  EncoderConfig config_;
  bool new_head_ = false;
  std::shared_ptr<const TensorSource> tensors_;
};

/// The folder's model in memory of `device`, with its weights. Errors (input): see EncoderFolder.
std::shared_ptr<EncoderModel> encoder_from_folder(const std::string& folder, Device device = cpu);

/// Writes config.json and model.safetensors as transformers does. `parameters`: the model's by
/// their names after `prefix`, such as those of a checkpoint ("model."). Errors: see
/// export_weights.
void write_encoder_folder(const EncoderConfig& config, const TensorSource& parameters,
                          const std::string& folder, const std::string& prefix = "");

}  // namespace tessera::encoders
