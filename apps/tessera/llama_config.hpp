// The sizes of a Llama as Hugging Face's config.json writes them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::app {

struct LlamaConfig {
  std::int64_t vocab = 0;
  std::int64_t dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_dim = 0;
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;

  /// Number of parameters, tied ones counted once.
  std::int64_t parameters() const;
  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

/// Reads FOLDER/config.json of a Llama in Hugging Face's form. rope_theta may stand at the top or
/// inside rope_parameters (newer writers); head_dim is optional. What this program does not compute
/// (another model_type or hidden_act, biases, another rope type) is refused by name.
/// Throws Error (input) that lists everything wrong with the file.
LlamaConfig read_llama_config(const std::filesystem::path& folder);

/// The same from a text; `name` begins the errors.
LlamaConfig parse_llama_config(std::string_view text, const std::string& name);

}  // namespace tessera::app
