// The built-in families of decoders: a table for each.
module;
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :decoder_family;

namespace tessera::models {
namespace {

using Shape = nn::DecoderShape;

constexpr ModelRange not_negative{.low = 0};
constexpr ModelRange window_range{.low = 0, .high = 0x1p40};

const char* const gated_by_silu = "the feed-forward part is SwiGLU";
const char* const no_bias = "the linear layers have no bias";
const char* const all_earlier = "a token attends to all earlier tokens";

constexpr ModelRange expert_range{.low = 1, .high = 0x1p16};
FixedHubKey no_balance() {
  return {"output_router_logits", "false", "the loss has no term that balances experts"};
}

DecoderProperty flag(std::string key, std::string hub, std::vector<DecoderProperty::Member> members,
                     std::string doc) {
  return {std::move(key), std::move(hub), std::move(members), false, false, std::move(doc)};
}

DecoderProperty window(std::int64_t absent) {
  return {"window",
          "sliding_window",
          {&Shape::window},
          std::int64_t{0},
          absent,
          "Tokens that a token sees in a layer with a sliding window, itself included. 0: all.",
          window_range};
}

DecoderProperty number(std::string key, std::string hub, double Shape::* member, double initial,
                       double absent, std::string doc) {
  return {std::move(key), std::move(hub), {member}, initial, absent, std::move(doc), not_negative};
}

DecoderTraits mistral() {
  return {.architecture = "MistralForCausalLM",
          .properties = {window(4096)},
          .scaled_rope = true,
          .fixed_keys = {{"hidden_act", "\"silu\"", gated_by_silu},
                         {"attention_dropout", "0.0", "attention probabilities are not dropped"}},
          .absent = {.max_positions = 131072}};
}

/// Qwen 2 and 2.5: a Llama with biases of queries, keys and values.
DecoderTraits qwen2() {
  return {.architecture = "Qwen2ForCausalLM",
          .special_tokens = {},
          .shape = {.norm_eps = 1e-6, .bias = true},
          .scaled_rope = true,
          .layer_types = true,
          .fixed_keys = {{"hidden_act", "\"silu\"", gated_by_silu},
                         {"attention_dropout", "0.0", "attention probabilities are not dropped"},
                         {"use_sliding_window", "false", all_earlier},
                         {"use_mrope", "false", "positions are numbers", false}},
          .ignored_keys = {"sliding_window", "max_window_layers"},
          .absent = {.max_positions = 32768}};
}

/// Qwen 3: heads of queries and keys are normalized.
DecoderTraits qwen3() {
  return {.architecture = "Qwen3ForCausalLM",
          .special_tokens = {},
          .shape = {.norm_eps = 1e-6, .query_key_norm = true},
          .scaled_rope = true,
          .layer_types = true,
          .fixed_keys = {{"hidden_act", "\"silu\"", gated_by_silu},
                         {"attention_bias", "false", no_bias},
                         {"attention_dropout", "0.0", "attention probabilities are not dropped"},
                         {"use_sliding_window", "false", all_earlier}},
          .ignored_keys = {"sliding_window", "max_window_layers"},
          .absent = {.max_positions = 32768, .head_dim = 128}};
}

/// How many experts layers have, and a token; what transformers assumes where a folder does not
/// say.
std::vector<DecoderProperty> expert_properties(std::string hub, std::string also,
                                               std::int64_t absent, std::int64_t absent_per_token) {
  DecoderProperty experts{"experts",
                          std::move(hub),
                          {&Shape::experts},
                          std::int64_t{8},
                          absent,
                          "Experts of a layer: feed-forward parts, of which each token has a few.",
                          expert_range};
  experts.also = std::move(also);
  return {experts,
          {"experts_per_token",
           "num_experts_per_tok",
           {&Shape::experts_per_token},
           std::int64_t{2},
           absent_per_token,
           "How many of them compute a token.",
           expert_range}};
}

/// What Gemma 2 and 3 have in common.
DecoderTraits gemma() {
  DecoderTraits traits;
  traits.special_tokens = {.bos = 2, .eos = 1};
  traits.shape = {.norm_eps = 1e-6,
                  .tie_embeddings = true,
                  .activation = nn::Activation::gelu_tanh,
                  .norm_results = true,
                  .norm_offset = true,
                  .scale_embeddings = true};
  traits.properties = {
      window(4096),
      number("score_dim", "query_pre_attn_scalar", &Shape::score_dim, 0, 256,
             "Scores of attention are divided by its square root. 0: the width of a head.")};
  traits.properties.back().whole = true;
  traits.layer_types = true;
  traits.fixed_keys = {{"hidden_activation", "\"gelu_pytorch_tanh\"", "the gate is a GELU"},
                       {"attention_bias", "false", no_bias},
                       {"attention_dropout", "0.0", "attention probabilities are not dropped"},
                       {"use_bidirectional_attention", "false", "attention is causal", false}};
  // What transformers computes with is hidden_activation.
  traits.ignored_keys = {"hidden_act", "cache_implementation"};
  traits.absent = {.head_dim = 256, .tie_embeddings = true};
  return traits;
}

DecoderTraits gemma2() {
  DecoderTraits traits = gemma();
  traits.architecture = "Gemma2ForCausalLM";
  traits.shape.global_every = 2;
  traits.properties.push_back(number("attention_softcap", "attn_logit_softcapping",
                                     &Shape::attention_softcap, 0, 50,
                                     "A score s of attention becomes `attention_softcap * tanh(s / "
                                     "attention_softcap)`. 0: it stays."));
  traits.properties.push_back(number("logit_softcap", "final_logit_softcapping",
                                     &Shape::logit_softcap, 0, 30, "The same for logits."));
  traits.absent.max_positions = 8192;
  return traits;
}

DecoderTraits gemma3() {
  DecoderTraits traits = gemma();
  traits.architecture = "Gemma3ForCausalLM";
  traits.shape.query_key_norm = true;
  traits.shape.rope_theta = 1e6;
  traits.shape.local_rope_theta = 10000;
  traits.properties.push_back({"global_every",
                               "sliding_window_pattern",
                               {&Shape::global_every},
                               std::int64_t{6},
                               std::int64_t{6},
                               "Each so many-th layer has no window. 0: all have it.",
                               {.low = 0, .high = 10000}});
  traits.properties.push_back(number("local_rope_theta", "rope_local_base_freq",
                                     &Shape::local_rope_theta, 10000, 10000,
                                     "The base of the rotary embedding in layers with a window."));
  traits.scaled_rope = true;
  traits.fixed_keys.push_back({"attn_logit_softcapping", "null", "scores stay as they are"});
  traits.fixed_keys.push_back({"final_logit_softcapping", "null", "logits stay as they are"});
  traits.ignored_keys.emplace_back("_sliding_window_pattern");
  traits.absent.max_positions = 131072;
  traits.absent.rope_theta = 1e6;
  return traits;
}

DecoderTraits phi3() {
  return {.architecture = "Phi3ForCausalLM",
          .special_tokens = {.bos = 1, .eos = 32000},
          .properties = {window(0)},
          .partial_rope = true,
          .fused = true,
          .fixed_keys = {{"hidden_act", "\"silu\"", gated_by_silu},
                         {"attention_bias", "false", no_bias},
                         {"attention_dropout", "0.0", "attention probabilities are not dropped"},
                         {"embd_pdrop", "0.0", "embeddings are not dropped"},
                         {"resid_pdrop", "0.0", "results of layers are not dropped"},
                         {"partial_rotary_factor", "1.0", "the whole head is rotated"}},
          .ignored_keys = {"original_max_position_embeddings"},
          .absent = {.max_positions = 4096, .norm_eps = 1e-5}};
}

}  // namespace

DecoderTraits llama_traits() {
  return {
      .architecture = "LlamaForCausalLM",
      .properties = {flag("attention_bias", "attention_bias", {&Shape::bias, &Shape::output_bias},
                          "The four projections of attention have biases."),
                     flag("ffn_bias", "mlp_bias", {&Shape::ffn_bias},
                          "The projections of the feed-forward part have biases.")},
      .scaled_rope = true,
      .fixed_keys = {{"hidden_act", "\"silu\"", gated_by_silu},
                     {"attention_dropout", "0.0", "attention probabilities are not dropped"},
                     {"partial_rotary_factor", "1.0", "the whole head is rotated", false},
                     {"rope_interleaved", "false", "pairs of a head are its halves", false},
                     {"sliding_window", "null", all_earlier, false},
                     {"attention_chunk_size", "null", all_earlier, false}}};
}

DecoderTraits mixtral_traits() {
  DecoderTraits traits = mistral();
  traits.architecture = "MixtralForCausalLM";
  traits.experts = HubExperts{.router = "block_sparse_moe.gate.weight",
                              .gate = "block_sparse_moe.experts.*.w1.weight",
                              .up = "block_sparse_moe.experts.*.w3.weight",
                              .down = "block_sparse_moe.experts.*.w2.weight"};
  traits.properties = expert_properties("num_local_experts", "", 8, 2);
  traits.properties.push_back(window(0));
  traits.fixed_keys.push_back(no_balance());
  traits.fixed_keys.push_back({"router_jitter_noise", "0.0", "the router adds no noise"});
  traits.ignored_keys.emplace_back("router_aux_loss_coef");
  traits.absent.rope_theta = 1e6;
  traits.absent.norm_eps = 1e-5;
  return traits;
}

DecoderTraits qwen3_moe_traits() {
  DecoderTraits traits = qwen3();
  traits.architecture = "Qwen3MoeForCausalLM";
  traits.layer_types = false;
  traits.experts.emplace();
  // transformers 4 has the first name, transformers 5 the second.
  traits.properties = expert_properties("num_experts", "num_local_experts", 128, 8);
  traits.properties.push_back({"expert_dim",
                               "moe_intermediate_size",
                               {&Shape::expert_dim},
                               std::int64_t{0},
                               std::int64_t{768},
                               "Width of an expert. 0: `ffn_dim`, that of layers without experts.",
                               {.low = 0, .high = 0x1p24}});
  traits.properties.push_back(flag("normalize_experts", "norm_topk_prob",
                                   {&Shape::normalize_experts},
                                   "The weights of a token's experts are scaled to sum to 1."));
  traits.properties.push_back({"experts_every",
                               "decoder_sparse_step",
                               {&Shape::experts_every},
                               std::int64_t{1},
                               std::int64_t{1},
                               "Each so many-th layer has experts.",
                               {.low = 1, .high = 10000}});
  traits.properties.push_back({"dense_layers",
                               "mlp_only_layers",
                               {&Shape::dense_layers},
                               std::vector<std::int64_t>{},
                               std::vector<std::int64_t>{},
                               "Layers, from 0, that have no experts in any case.",
                               {.low = 0, .high = 10000}});
  traits.fixed_keys.push_back(no_balance());
  traits.ignored_keys.emplace_back("router_aux_loss_coef");
  traits.absent.head_dim = 0;
  return traits;
}

/// Qwen 2 MoE: a Qwen 3 MoE with biases instead of norms, and an expert for all tokens that has a
/// gate.
DecoderTraits qwen2_moe_traits() {
  DecoderTraits traits = qwen3_moe_traits();
  traits.architecture = "Qwen2MoeForCausalLM";
  traits.shape.query_key_norm = false;
  traits.shape.bias = true;
  traits.shape.shared_expert_gate = true;
  traits.properties.push_back({"shared_expert_dim",
                               "shared_expert_intermediate_size",
                               {&Shape::shared_expert_dim},
                               std::int64_t{256},
                               std::int64_t{5632},
                               "Width of the expert of all tokens.",
                               {.low = 1, .high = 0x1p24}});
  for (const auto& [key, absent] :
       {std::pair{"experts", 60}, {"experts_per_token", 4}, {"expert_dim", 1408}}) {
    std::ranges::find(traits.properties, key, &DecoderProperty::key)->absent = std::int64_t{absent};
  }
  traits.layer_types = true;
  std::erase_if(traits.fixed_keys, [](const auto& one) { return one.key == "attention_bias"; });
  traits.fixed_keys.push_back({"qkv_bias", "true", "queries, keys and values have biases"});
  return traits;
}

const std::map<std::string, DecoderTraits (*)()>& built_in_decoders() {
  static const std::map<std::string, DecoderTraits (*)()> families = {
      {"gemma2", gemma2},
      {"gemma3_text", gemma3},
      {"llama", llama_traits},
      {"mistral", mistral},
      {"mixtral", mixtral_traits},
      {"phi3", phi3},
      {"qwen2", qwen2},
      {"qwen2_moe", qwen2_moe_traits},
      {"qwen3", qwen3},
      {"qwen3_moe", qwen3_moe_traits}};
  return families;
}

}  // namespace tessera::models
