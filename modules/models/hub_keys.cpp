module;
#include <array>
#include <string_view>
module tessera.models;

import tessera.base;

namespace tessera::models {
namespace {

// Keys of transformers' PretrainedConfig, and of the models' configs, without influence on what is
// computed: tokens' meanings, how transformers runs the model, its defaults for generation, notes.
constexpr std::string_view irrelevant[] = {
    "architectures", "auto_map", "dtype", "torch_dtype", "bos_token_id", "eos_token_id",
    "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id", "decoder_start_token_id",
    "initializer_range", "transformers_version", "pretraining_tp", "use_cache", "output_attentions",
    "output_hidden_states", "return_dict", "chunk_size_feed_forward", "id2label", "label2id",
    "num_labels", "problem_type", "finetuning_task", "task_specific_params", "tokenizer_class",
    "prefix", "name_or_path", "_name_or_path", "_commit_hash", "attn_implementation",
    "_attn_implementation", "_attn_implementation_autoset", "experts_implementation",
    "tie_last_hidden_states", "torchscript", "use_bfloat16", "tf_legacy_loss", "is_decoder",
    "tie_encoder_decoder", "cross_attention_hidden_size", "max_sequence_length",
    "assistant_confidence_threshold", "assistant_lookbehind", "bad_words_ids",
    "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate",
    "suppress_tokens", "target_lookbehind", "temperature", "top_k", "top_p", "typical_p",
    // Of other programs.
    "is_llama_config", "model_max_length", "transformers.js_config", "unsloth_fixed",
    "unsloth_version", "_flash_attn_2_enabled", "_attn_implementation_internal"};

}  // namespace

std::span<const std::string_view> irrelevant_hub_keys() { return irrelevant; }

}  // namespace tessera::models
