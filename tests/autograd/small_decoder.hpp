// A decoder with everything that backward meets in one. Include it behind the imports of
// tessera.base, tensor and nn.
#pragma once
#include <cstdint>
#include <memory>

namespace on_graph {

/// Three layers with dropout in f64, the same weights each time.
inline std::shared_ptr<tessera::nn::DecoderLM> small_decoder(bool checkpointed, bool tied) {
  tessera::set_seed(5);
  auto model = std::make_shared<tessera::nn::DecoderLM>(
      tessera::nn::DecoderShape{.vocab = 11,
                                .dim = 8,
                                .layers = 3,
                                .heads = 4,
                                .kv_heads = 2,
                                .ffn_dim = 12,
                                .tie_embeddings = tied,
                                .dropout = 0.1,
                                .dtype = tessera::DType::f64});
  tessera::nn::materialize(*model);
  tessera::nn::initialize(*model);
  model->set_activation_checkpointing(checkpointed);
  return model;
}

/// Two rows of its tokens.
inline tessera::Tensor small_tokens() {
  tessera::Tensor tokens = tessera::empty({2, 5}, tessera::DType::i64);
  for (std::int64_t i = 0; i < 10; ++i) {
    tokens.data<std::int64_t>()[i] = (3 * i) % 11;
  }
  return tokens;
}

}  // namespace on_graph
