#include "model_shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.checkpoint;

#include "stored_sizes.hpp"

namespace tessera::app {
namespace {

/// PyTorch's name of a type, as config.json has it.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f64:
      return "float64";
    default:
      return "float32";
  }
}

LlamaConfig folder_shape(const Config& config, std::int64_t tokenizer_vocab) {
  const std::filesystem::path folder = config.model.from;
  std::vector<std::string> unknown;
  LlamaConfig shape = read_llama_config(folder, &unknown);
  if (!unknown.empty() && collective::is_first_process()) {
    log(LogLevel::warning, fmt::format("{}: ignored keys that are unknown: {}",
                                       (folder / "config.json").string(), join_words(unknown)));
  }
  if (tokenizer_vocab > 0) {
    check_tokenizer_fits(config.data.tokenizer, tokenizer_vocab, shape.vocab, folder,
                         config.place("model.from"));
  }
  const SafetensorsFolder weights(folder.string());
  check_stored_sizes(shape, weights, "", (folder / "config.json").string());
  if (shape.dtype.empty()) {
    shape.dtype = torch_name(weights.info("model.embed_tokens.weight").dtype);
  }
  // Trained on longer sequences, the model is meant for them too.
  shape.max_positions = std::max(shape.max_positions, config.data.seq_len);
  return shape;
}

}  // namespace

LlamaConfig model_shape(const Config& config, std::int64_t tokenizer_vocab) {
  const ModelConfig& m = config.model;
  if (!m.from.empty()) {
    return folder_shape(config, tokenizer_vocab);
  }
  LlamaConfig shape;
  shape.vocab = tokenizer_vocab > 0 ? tokenizer_vocab : m.vocab;
  shape.dim = m.dim;
  shape.layers = m.layers;
  shape.heads = m.heads;
  shape.kv_heads = m.kv_heads > 0 ? m.kv_heads : m.heads;
  shape.head_dim = m.head_dim > 0 ? m.head_dim : m.dim / m.heads;
  shape.ffn_dim = m.ffn_dim > 0 ? m.ffn_dim : (8 * m.dim / 3 + 63) / 64 * 64;
  shape.rope_theta = m.rope_theta;
  shape.norm_eps = m.norm_eps;
  shape.tie_embeddings = m.tie_embeddings;
  shape.max_positions = config.data.seq_len;
  check_parameter_count(shape, config.place("model.dim"));
  return shape;
}

}  // namespace tessera::app
