// A Llama as Hugging Face's config.json describes it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

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

  // What does not change the computation, and goes out again with an export.
  std::int64_t max_positions = 2048;  // the longest sequence that the model is meant for
  std::string dtype = "float32";      // of an exported file; "" where config.json does not say
  std::vector<std::int64_t> eos;      // generation stops at each of these tokens
  /// The other keys of config.json as a JSON object: token ids and what this program only passes
  /// on. Empty: null token ids and the defaults.
  std::string others;
  std::string generation;  // generation_config.json; empty: it follows from the token ids

  /// Number of parameters, tied ones counted once.
  std::int64_t parameters() const;
  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

/// Reads FOLDER/config.json of a Llama in Hugging Face's form, and generation_config.json if there
/// is one. rope_theta may be at the top or inside rope_parameters (newer writers); head_dim is
/// optional. Keys that are absent have the defaults of transformers. What this program does not
/// compute (another model_type or hidden_act, biases, attention dropout, another rope type...) is
/// refused by name, and so are misspelt keys (llama_keys.hpp). `unknown` gets the keys of
/// config.json that are ignored because nobody knows them. Throws Error (input) that lists
/// everything wrong with the file.
LlamaConfig read_llama_config(const std::filesystem::path& folder,
                              std::vector<std::string>* unknown = nullptr);

/// The same from a text; `name` begins the errors.
LlamaConfig parse_llama_config(std::string_view text, const std::string& name);

/// The model of a checkpoint of 'tessera train', from its meta data. Throws Error (input).
LlamaConfig stored_llama_config(std::string_view meta, const std::string& checkpoint);

/// Throws Error (input) unless the number of parameters can be counted; `name` begins the error.
void check_parameter_count(const LlamaConfig& config, const std::string& name);

/// config.json in Hugging Face's words, for checkpoints and exports: parse_llama_config's inverse.
std::string hugging_face_config(const LlamaConfig& config);

/// generation_config.json: the folder's own, or one with the token ids of config.json.
std::string generation_config(const LlamaConfig& config);

}  // namespace tessera::app
