export module tessera.encoders:encoder_config;

import tessera.base;
import :encoder;

export namespace tessera::encoders {

/// What a config.json says of an encoder.
struct EncoderConfig {
  std::string family;  // model_type
  EncoderShape shape = {};
  std::vector<std::string> labels = {};  // of a classifier, by their numbers
  std::string dtype = {};                // of a folder's weights; "" where config.json does not say
  /// The other keys of config.json as a JSON object, which go out again with an export.
  std::string others = {};
};

/// The names of the families: model_type of config.json.
std::vector<std::string> encoder_families();

/// Reads a config.json in Hugging Face's form; `name` begins the errors. Keys that are absent have
/// the defaults of transformers. Error (input) that lists everything wrong with it: what the family
/// does not compute is refused by name, and so are keys that nobody understands.
EncoderConfig parse_encoder_config(std::string_view text, const std::string& name);

/// The encoder of a checkpoint, by its meta data; nothing: its model is another one. Errors
/// (input): as above.
std::optional<EncoderConfig> stored_encoder(std::string_view meta, const std::string& checkpoint);

/// config.json in Hugging Face's words: parse_encoder_config's inverse.
std::string encoder_config_text(const EncoderConfig& config);

/// The same encoder as a classifier with these labels, of rows or of tokens (`head`). Errors
/// (input): there are fewer than two, or one is there twice; the family has no such class.
EncoderConfig with_labels(EncoderConfig config, std::vector<std::string> labels,
                          EncoderHead head = EncoderHead::classes);

}  // namespace tessera::encoders
