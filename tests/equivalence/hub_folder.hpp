// What the tests of folders in Hugging Face's form share.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "safetensors.hpp"

namespace equivalence {

/// The config of a run of one step that changes no bit of a weight.
std::string one_step(const std::string& model, const std::string& tokens, std::int64_t seq_len,
                     std::int64_t batch);

/// The tensors of all safetensors files of a folder.
std::map<std::string, StoredTensor> tensors_of(const std::string& folder);

nlohmann::json json_of(const std::string& folder, const char* file);

/// What other programs read of config.json: the same, where the source leaves it to the defaults
/// of transformers too.
void has_the_same_words(const std::string& exported, const std::string& source);

/// The same tensors, by name, shape, type and bytes.
void holds_the_same(const std::string& exported, const std::string& source);

}  // namespace equivalence
