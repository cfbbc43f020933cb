#include "model_shape.hpp"

#include <fmt/format.h>

import tessera.base;

namespace tessera::app {

LlamaConfig model_shape(const Config& config, std::int64_t tokenizer_vocab) {
  const ModelConfig& m = config.model;
  if (!m.from.empty()) {
    LlamaConfig shape = read_llama_config(m.from);
    if (shape.vocab < tokenizer_vocab) {
      fail_input(fmt::format("{}: the folder's model knows {} tokens, the tokenizer '{}' makes {}",
                             config.place("model.from"), shape.vocab, config.data.tokenizer,
                             tokenizer_vocab));
    }
    return shape;
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
  return shape;
}

}  // namespace tessera::app
