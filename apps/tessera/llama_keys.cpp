#include "llama_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

import tessera.base;

namespace tessera::app {
namespace {

using Json = nlohmann::json;

/// Keys that parse_llama_config reads and that change the model.
constexpr const char* read_keys[] = {"vocab_size",
                                     "hidden_size",
                                     "intermediate_size",
                                     "num_hidden_layers",
                                     "num_attention_heads",
                                     "num_key_value_heads",
                                     "head_dim",
                                     "rms_norm_eps",
                                     "rope_theta",
                                     "rope_scaling",
                                     "rope_parameters",
                                     "tie_word_embeddings",
                                     "model_type",
                                     "max_position_embeddings"};

/// Keys that must be absent, null or have this value.
struct Fixed {
  const char* key;
  const char* value;  // JSON; "null": the key must be null or absent
  const char* reason;
};

constexpr Fixed fixed_keys[] = {
    {"hidden_act", "\"silu\"", "the feed-forward part is SwiGLU"},
    {"attention_bias", "false", "the linear layers have no bias"},
    {"mlp_bias", "false", "the linear layers have no bias"},
    {"attention_dropout", "0.0", "attention probabilities are not dropped"},
    {"is_causal", "true", "a token attends to earlier tokens only"},
    {"is_encoder_decoder", "false", "the model is a decoder"},
    {"add_cross_attention", "false", "the model is a decoder"},
    {"pruned_heads", "{}", "all heads are computed"},
    {"per_layer_config", "{}", "all layers have the same sizes"},
    {"partial_rotary_factor", "1.0", "the whole head is rotated"},
    {"sliding_window", "null", "a token attends to all earlier tokens"},
    {"attention_chunk_size", "null", "a token attends to all earlier tokens"},
    {"quantization_config", "null", "weights are floating numbers"},
    {"compression_config", "null", "weights are floating numbers"},
    {"loss_type", "\"ForCausalLM\"", "the loss is the cross entropy of the next token"}};

/// Lists of one entry for each layer, which must all be this one.
constexpr Fixed fixed_lists[] = {
    {"layer_types", "\"full_attention\"", "a token attends to all earlier tokens"},
    {"mlp_layer_types", "\"dense\"", "every feed-forward part is dense"}};

/// Keys without influence on what the model computes: tokens' meanings, how transformers runs the
/// model, its defaults for generation, and notes.
constexpr const char* irrelevant_keys[] = {"architectures",  // checked by check_code
                                           "auto_map",       // checked by check_code
                                           "dtype",
                                           "torch_dtype",
                                           "bos_token_id",
                                           "eos_token_id",
                                           "pad_token_id",
                                           "sep_token_id",
                                           "cls_token_id",
                                           "unk_token_id",
                                           "decoder_start_token_id",
                                           "initializer_range",
                                           "transformers_version",
                                           "pretraining_tp",
                                           "use_cache",
                                           "output_attentions",
                                           "output_hidden_states",
                                           "return_dict",
                                           "chunk_size_feed_forward",
                                           "id2label",
                                           "label2id",
                                           "num_labels",
                                           "problem_type",
                                           "finetuning_task",
                                           "task_specific_params",
                                           "tokenizer_class",
                                           "prefix",
                                           "name_or_path",
                                           "_name_or_path",
                                           "_commit_hash",
                                           "attn_implementation",
                                           "_attn_implementation",
                                           "_attn_implementation_autoset",
                                           "experts_implementation",
                                           "tie_last_hidden_states",
                                           "torchscript",
                                           "use_bfloat16",
                                           "tf_legacy_loss",
                                           "is_decoder",
                                           "tie_encoder_decoder",
                                           "cross_attention_hidden_size",
                                           "max_sequence_length",
                                           "assistant_confidence_threshold",
                                           "assistant_lookbehind",
                                           "bad_words_ids",
                                           "begin_suppress_tokens",
                                           "diversity_penalty",
                                           "do_sample",
                                           "early_stopping",
                                           "encoder_no_repeat_ngram_size",
                                           "encoder_repetition_penalty",
                                           "epsilon_cutoff",
                                           "eta_cutoff",
                                           "exponential_decay_length_penalty",
                                           "forced_bos_token_id",
                                           "forced_eos_token_id",
                                           "length_penalty",
                                           "max_length",
                                           "min_length",
                                           "no_repeat_ngram_size",
                                           "num_assistant_tokens",
                                           "num_assistant_tokens_schedule",
                                           "num_beam_groups",
                                           "num_beams",
                                           "num_return_sequences",
                                           "output_scores",
                                           "remove_invalid_values",
                                           "repetition_penalty",
                                           "return_dict_in_generate",
                                           "suppress_tokens",
                                           "target_lookbehind",
                                           "temperature",
                                           "top_k",
                                           "top_p",
                                           "typical_p"};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

class Check {
 public:
  explicit Check(const Json& config) : config_(config) {}

  LlamaKeys operator()() {
    for (const Fixed& fixed : fixed_keys) {
      check_fixed(fixed);
    }
    for (const Fixed& fixed : fixed_lists) {
      check_list(fixed);
    }
    check_code();
    check_names();
    return std::move(result_);
  }

 private:
  /// Null where the key is absent or null: the two mean the same.
  const Json* find(const char* key) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }

  void refuse(const Fixed& fixed, const Json& value) {
    result_.problems.push_back(fmt::format("{} {} is not supported (only {}): {}", fixed.key,
                                           shown(value), fixed.value, fixed.reason));
  }

  void check_fixed(const Fixed& fixed) {
    const Json* value = find(fixed.key);
    if (value != nullptr && *value != Json::parse(fixed.value)) {
      refuse(fixed, *value);
    }
  }

  void check_list(const Fixed& fixed) {
    const Json* value = find(fixed.key);
    const Json only = Json::parse(fixed.value);
    if (value != nullptr &&
        (!value->is_array() ||
         std::ranges::any_of(*value, [&](const Json& entry) { return entry != only; }))) {
      refuse(fixed, *value);
    }
  }

  /// The class that transformers makes of the folder. "LLaMAForCausalLM" is its first spelling.
  void check_code() {
    if (const Json* classes = find("architectures"); classes != nullptr) {
      const bool known = classes->is_array() && classes->size() == 1 &&
                         classes->front().is_string() &&
                         lower(classes->front().get<std::string>()) == "llamaforcausallm";
      if (!known && !(classes->is_array() && classes->empty())) {
        refuse({"architectures", "[\"LlamaForCausalLM\"]", "another model, or another head on it"},
               *classes);
      }
    }
    if (const Json* map = find("auto_map"); map != nullptr && map->is_object()) {
      for (const auto& [name, code] : map->items()) {
        if (name.starts_with("AutoModel")) {
          refuse({"auto_map", "null", "the folder brings its own code for the model"}, *map);
          return;
        }
      }
    }
  }

  void check_names() {
    std::vector<std::string> changing(std::begin(read_keys), std::end(read_keys));
    for (const Fixed& fixed : fixed_keys) {
      changing.emplace_back(fixed.key);
    }
    for (const Fixed& fixed : fixed_lists) {
      changing.emplace_back(fixed.key);
    }
    for (const auto& [key, value] : config_.items()) {
      if (std::ranges::find(changing, key) != changing.end() ||
          std::ranges::find(irrelevant_keys, key) != std::end(irrelevant_keys)) {
        continue;
      }
      if (const std::string nearest = nearest_name(key, changing); !nearest.empty()) {
        result_.problems.push_back(fmt::format(
            "{}: unknown key; did you mean '{}'? Correct it, or remove it", key, nearest));
      } else {
        result_.unknown.push_back(key);
      }
    }
  }

  const Json& config_;
  LlamaKeys result_;
};

}  // namespace

LlamaKeys check_llama_keys(const nlohmann::json& config) { return Check(config)(); }

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t longest = 60;
  std::string text = value.dump();
  if (text.size() > longest) {
    std::size_t end = longest;
    while ((static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
      --end;  // not inside a UTF-8 character
    }
    text.resize(end);
    text += "...";
  }
  return text;
}

}  // namespace tessera::app
