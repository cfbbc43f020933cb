// What each key of a config.json in Hugging Face's form means for this program.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera::app {

/// Keys that this program has no use for, and why a file is refused.
struct LlamaKeys {
  std::vector<std::string> problems;  // "KEY VALUE is not supported (only ...): reason"
  std::vector<std::string> unknown;   // keys of nobody's, which are ignored
};

/// Goes through all keys of the object. Every key of transformers' LlamaConfig and PretrainedConfig
/// is of one of three kinds: read by parse_llama_config, required to have the one value that this
/// program computes (attention_dropout 0, no biases...), or without influence on the model
/// (use_cache, id2label...). Any other key that is nearly the name of one that changes the model is
/// a problem with the nearest name; the rest is listed as unknown.
LlamaKeys check_llama_keys(const nlohmann::json& config);

/// The keys of a config.json that hugging_face_config does not write itself: what an export passes
/// on.
nlohmann::json without_written_keys(nlohmann::json config);

/// A value as an error shows it: its JSON, cut after 60 characters.
std::string shown(const nlohmann::json& value);

}  // namespace tessera::app
