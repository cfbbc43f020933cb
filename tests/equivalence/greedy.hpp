// Texts of stored token ids, for models without a tokenizer.
#pragma once
#include <string>
#include <vector>

#include "support.hpp"

namespace equivalence {

/// A tokenizer's file with the words t0, t1... for a model of token ids.
std::string words_tokenizer(const Folder& folder, int vocab);

/// Token ids as a text of these words.
std::string prompt_of(const std::vector<int>& ids);

/// The tokens that follow each prompt, by a command `generate --json`.
std::vector<std::vector<int>> continued(const std::string& command);

}  // namespace equivalence
