export module tessera.hub:model_shape;

import tessera.base;
import tessera.models;

// Which model a folder in Hugging Face's format, a GGUF file or a checkpoint describes.

export namespace tessera::hub {

/// A model of a family: the family gives the values their meaning (models::ModelFamily).
struct ModelShape {
  std::string family = "llama";
  std::int64_t vocab = 0;
  std::map<std::string, models::ModelValue> values = {};  // of the family's keys, complete

  // Values that do not change the computation, and go out again with an export.
  std::int64_t max_positions = 2048;   // the longest sequence that the model is meant for
  std::string dtype = "float32";       // of an exported file; "" where config.json does not say
  std::vector<std::int64_t> eos = {};  // generation stops at each of these tokens
  /// The other keys of config.json as a JSON object: token ids and what this program only passes
  /// on. Empty: null token ids and the defaults.
  std::string others = {};
  std::string generation = {};  // generation_config.json; empty: it follows from the token ids

  /// Number of parameters, tied ones counted once.
  std::int64_t parameters() const;
  /// "dim 256, 8 layers, ..., vocabulary 256".
  std::string text() const;
  friend bool operator==(const ModelShape& a, const ModelShape& b);
};

/// Reads FOLDER/config.json in Hugging Face's form, and generation_config.json if there is one; or
/// the fields of a GGUF file (gguf_file). model_type names the family. Keys that are absent have
/// the defaults of transformers. What the family does not compute is refused by name, and so are
/// keys that nobody understands. Throws Error (input) that lists everything wrong with the file.
ModelShape read_model_folder(const std::filesystem::path& folder);

/// Reads the shape from a text; `name` begins the errors.
ModelShape parse_hub_config(std::string_view text, const std::string& name);

/// The model of a checkpoint of 'tessera train', from its meta data. Keys that nobody understands
/// have not made it another one. Throws Error (input).
ModelShape stored_model(std::string_view meta, const std::string& checkpoint);

/// config.json in Hugging Face's words, for checkpoints and exports: parse_hub_config's inverse.
std::string hub_config(const ModelShape& shape);

/// Generation stops at these tokens too, also by generation_config.json.
void add_end_tokens(ModelShape& shape, std::span<const std::int64_t> tokens);

/// generation_config.json: the folder's own, or one with the token ids of config.json.
std::string generation_config(const ModelShape& shape);

}  // namespace tessera::hub
