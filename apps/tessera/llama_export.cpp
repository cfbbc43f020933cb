#include <string>
#include <tessera/json.hpp>

#include "llama_config.hpp"

namespace tessera::app {

using Json = nlohmann::json;

std::string hugging_face_config(const LlamaConfig& c) {
  Json json = c.others.empty() ? Json{{"bos_token_id", nullptr},
                                      {"eos_token_id", nullptr},
                                      {"pad_token_id", nullptr},
                                      {"initializer_range", 0.02},
                                      {"use_cache", true}}
                               : parse_json(c.others);
  json.update(Json{{"architectures", {"LlamaForCausalLM"}},
                   {"model_type", "llama"},
                   {"vocab_size", c.vocab},
                   {"hidden_size", c.dim},
                   {"intermediate_size", c.ffn_dim},
                   {"num_hidden_layers", c.layers},
                   {"num_attention_heads", c.heads},
                   {"num_key_value_heads", c.kv_heads},
                   {"head_dim", c.head_dim},
                   {"rms_norm_eps", c.norm_eps},
                   // transformers 4 reads the first, transformers 5 the second.
                   {"rope_theta", c.rope_theta},
                   {"rope_parameters", {{"rope_theta", c.rope_theta}, {"rope_type", "default"}}},
                   {"tie_word_embeddings", c.tie_embeddings},
                   {"hidden_act", "silu"},
                   {"attention_bias", false},
                   {"attention_dropout", 0.0},
                   {"mlp_bias", false},
                   {"max_position_embeddings", c.max_positions}});
  if (!c.dtype.empty()) {
    json.update(Json{{"dtype", c.dtype}, {"torch_dtype", c.dtype}});
  }
  return json_text(json, 2);
}

std::string generation_config(const LlamaConfig& c) {
  if (!c.generation.empty()) {
    return json_text(parse_json(c.generation), 2);
  }
  const Json config = parse_json(hugging_face_config(c));
  Json json = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    json[key] = config[key];
  }
  return json_text(json, 2);
}

}  // namespace tessera::app
