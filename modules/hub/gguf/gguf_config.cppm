module tessera.hub:gguf_config;

import tessera.base;
import tessera.models;
import tessera.checkpoint;
import :gguf;

// The fields of GGUF files and config.json, by what families say of both (models::GgufForm).

namespace tessera::hub {

/// The model that a file's fields describe.
struct GgufModel {
  std::string config = {};          // config.json
  std::int64_t further_layers = 0;  // after the others, which are not read
};

/// Errors (input): see gguf_config.
GgufModel read_gguf_model(const TensorSource& file);

/// What a file has besides the model's tensors.
struct GgufFields {
  std::string fields = {};                                 // a JSON object
  std::map<std::string, std::vector<float>> factors = {};  // tensors of the rotary embedding
};

GgufFields gguf_fields(const models::GgufForm& form, const GgufContent& content);

/// Whether the tensor is read with the fields.
bool is_rotary_tensor(std::string_view name);

}  // namespace tessera::hub
