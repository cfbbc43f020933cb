#include "llama_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string_view>
#include <tessera/json.hpp>

import tessera.base;

namespace tessera::app {
namespace {

using Json = nlohmann::json;

/// What a key is to this program, besides those that must have one value (Fixed).
enum class Use : std::uint8_t {
  read,        ///< parse_llama_config reads it, and it changes the model
  irrelevant,  ///< without influence on what the model computes: tokens' meanings, how transformers
               ///< runs the model, its defaults for generation, and notes
};

struct Key {
  const char* name;
  Use use;
  bool written;  ///< by hugging_face_config, from what LlamaConfig has members for
};

constexpr Key keys[] = {{"vocab_size", Use::read, true},
                        {"hidden_size", Use::read, true},
                        {"intermediate_size", Use::read, true},
                        {"num_hidden_layers", Use::read, true},
                        {"num_attention_heads", Use::read, true},
                        {"num_key_value_heads", Use::read, true},
                        {"head_dim", Use::read, true},
                        {"rms_norm_eps", Use::read, true},
                        {"rope_theta", Use::read, true},
                        {"rope_scaling", Use::read, true},
                        {"rope_parameters", Use::read, true},
                        {"tie_word_embeddings", Use::read, true},
                        {"model_type", Use::read, true},
                        {"max_position_embeddings", Use::read, true},
                        {"architectures", Use::irrelevant, true},  // checked by check_code
                        {"auto_map", Use::irrelevant, false},      // checked by check_code
                        {"dtype", Use::irrelevant, true},
                        {"torch_dtype", Use::irrelevant, true},
                        {"bos_token_id", Use::irrelevant, false},
                        {"eos_token_id", Use::irrelevant, false},
                        {"pad_token_id", Use::irrelevant, false},
                        {"sep_token_id", Use::irrelevant, false},
                        {"cls_token_id", Use::irrelevant, false},
                        {"unk_token_id", Use::irrelevant, false},
                        {"decoder_start_token_id", Use::irrelevant, false},
                        {"initializer_range", Use::irrelevant, false},
                        {"transformers_version", Use::irrelevant, true},
                        {"pretraining_tp", Use::irrelevant, false},
                        {"use_cache", Use::irrelevant, false},
                        {"output_attentions", Use::irrelevant, false},
                        {"output_hidden_states", Use::irrelevant, false},
                        {"return_dict", Use::irrelevant, false},
                        {"chunk_size_feed_forward", Use::irrelevant, false},
                        {"id2label", Use::irrelevant, false},
                        {"label2id", Use::irrelevant, false},
                        {"num_labels", Use::irrelevant, false},
                        {"problem_type", Use::irrelevant, false},
                        {"finetuning_task", Use::irrelevant, false},
                        {"task_specific_params", Use::irrelevant, false},
                        {"tokenizer_class", Use::irrelevant, false},
                        {"prefix", Use::irrelevant, false},
                        {"name_or_path", Use::irrelevant, false},
                        {"_name_or_path", Use::irrelevant, false},
                        {"_commit_hash", Use::irrelevant, false},
                        {"attn_implementation", Use::irrelevant, false},
                        {"_attn_implementation", Use::irrelevant, false},
                        {"_attn_implementation_autoset", Use::irrelevant, false},
                        {"experts_implementation", Use::irrelevant, false},
                        {"tie_last_hidden_states", Use::irrelevant, false},
                        {"torchscript", Use::irrelevant, false},
                        {"use_bfloat16", Use::irrelevant, false},
                        {"tf_legacy_loss", Use::irrelevant, false},
                        {"is_decoder", Use::irrelevant, false},
                        {"tie_encoder_decoder", Use::irrelevant, false},
                        {"cross_attention_hidden_size", Use::irrelevant, false},
                        {"max_sequence_length", Use::irrelevant, false},
                        {"assistant_confidence_threshold", Use::irrelevant, false},
                        {"assistant_lookbehind", Use::irrelevant, false},
                        {"bad_words_ids", Use::irrelevant, false},
                        {"begin_suppress_tokens", Use::irrelevant, false},
                        {"diversity_penalty", Use::irrelevant, false},
                        {"do_sample", Use::irrelevant, false},
                        {"early_stopping", Use::irrelevant, false},
                        {"encoder_no_repeat_ngram_size", Use::irrelevant, false},
                        {"encoder_repetition_penalty", Use::irrelevant, false},
                        {"epsilon_cutoff", Use::irrelevant, false},
                        {"eta_cutoff", Use::irrelevant, false},
                        {"exponential_decay_length_penalty", Use::irrelevant, false},
                        {"forced_bos_token_id", Use::irrelevant, false},
                        {"forced_eos_token_id", Use::irrelevant, false},
                        {"length_penalty", Use::irrelevant, false},
                        {"max_length", Use::irrelevant, false},
                        {"min_length", Use::irrelevant, false},
                        {"no_repeat_ngram_size", Use::irrelevant, false},
                        {"num_assistant_tokens", Use::irrelevant, false},
                        {"num_assistant_tokens_schedule", Use::irrelevant, false},
                        {"num_beam_groups", Use::irrelevant, false},
                        {"num_beams", Use::irrelevant, false},
                        {"num_return_sequences", Use::irrelevant, false},
                        {"output_scores", Use::irrelevant, false},
                        {"remove_invalid_values", Use::irrelevant, false},
                        {"repetition_penalty", Use::irrelevant, false},
                        {"return_dict_in_generate", Use::irrelevant, false},
                        {"suppress_tokens", Use::irrelevant, false},
                        {"target_lookbehind", Use::irrelevant, false},
                        {"temperature", Use::irrelevant, false},
                        {"top_k", Use::irrelevant, false},
                        {"top_p", Use::irrelevant, false},
                        {"typical_p", Use::irrelevant, false}};

/// Keys that must be absent, null or have this value.
struct Fixed {
  const char* key;
  const char* value;  // JSON; "null": the key must be null or absent
  const char* reason;
  bool written = false;  // by hugging_face_config, for every model
};

constexpr Fixed fixed_keys[] = {
    {"hidden_act", "\"silu\"", "the feed-forward part is SwiGLU", true},
    {"attention_bias", "false", "the linear layers have no bias", true},
    {"mlp_bias", "false", "the linear layers have no bias", true},
    {"attention_dropout", "0.0", "attention probabilities are not dropped", true},
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
    if (value != nullptr && *value != parse_json(fixed.value)) {
      refuse(fixed, *value);
    }
  }

  void check_list(const Fixed& fixed) {
    const Json* value = find(fixed.key);
    const Json only = parse_json(fixed.value);
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
    std::vector<std::string> changing;
    std::vector<std::string> irrelevant;
    for (const Key& key : keys) {
      (key.use == Use::read ? changing : irrelevant).emplace_back(key.name);
    }
    for (const Fixed& fixed : fixed_keys) {
      changing.emplace_back(fixed.key);
    }
    for (const Fixed& fixed : fixed_lists) {
      changing.emplace_back(fixed.key);
    }
    for (const auto& [key, value] : config_.items()) {
      if (std::ranges::find(changing, key) != changing.end() ||
          std::ranges::find(irrelevant, key) != irrelevant.end()) {
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

nlohmann::json without_written_keys(nlohmann::json config) {
  for (const Key& key : keys) {
    if (key.written) {
      config.erase(key.name);
    }
  }
  for (const Fixed& fixed : fixed_keys) {
    if (fixed.written) {
      config.erase(fixed.key);
    }
  }
  return config;
}

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t longest = 60;
  std::string text = json_text(value);
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
