// What turns a word into tokens: the "model" of tokenizer.json, and tiktoken's ranks.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <vector>

#include "vocabulary.hpp"

namespace tessera::tokenize {

/// A token of a word, and how many of the word's bytes it stands for.
struct Part {
  std::int32_t id = 0;
  std::uint32_t bytes = 0;
};

class WordModel {
 public:
  virtual ~WordModel() = default;
  /// Appends the tokens of a word that is not empty, without keeping anything. Safe to call from
  /// several threads.
  virtual void encode(std::string_view word, std::vector<Part>& parts) const = 0;
  /// The token of each id; empty where there is none.
  virtual const std::vector<std::optional<std::string>>& tokens() const = 0;
  virtual std::optional<std::int32_t> find(std::string_view token) const = 0;
  /// A character before which a word may be divided, where another one is before it, without any
  /// change of the tokens. Empty, the default: there is none. A file that does not divide a text
  /// into words, as Llama 2's, has words after all in this way, and a cache helps.
  virtual std::string_view divides_before() const { return {}; }
};

/// A model whose tokens are those of a vocabulary.
class VocabularyModel : public WordModel {
 public:
  const std::vector<std::optional<std::string>>& tokens() const final {
    return vocabulary_.tokens();
  }
  std::optional<std::int32_t> find(std::string_view token) const final {
    return vocabulary_.find(token);
  }

 protected:
  Vocabulary vocabulary_;
};

/// The "model" of a file. `words_are_bytes`: tokens are in GPT-2's alphabet, words are bytes.
/// Errors (input) that begin with `where`.
std::unique_ptr<WordModel> read_word_model(const nlohmann::json& json, const std::string& where,
                                           bool words_are_bytes);
/// Whether the model of this file can take words_are_bytes.
bool takes_bytes(const nlohmann::json& json);

/// tiktoken's: the token of bytes `tokens[i]` has the rank and the id i. Empty entries are no
/// tokens. Errors (input) that begin with `where`: a byte has no token; two tokens are equal.
std::unique_ptr<WordModel> ranked_bytes(std::vector<std::string> tokens, const std::string& where);

std::unique_ptr<WordModel> read_bpe(const nlohmann::json& json, const std::string& where,
                                    bool words_are_bytes);
std::unique_ptr<WordModel> read_unigram(const nlohmann::json& json, const std::string& where);

}  // namespace tessera::tokenize
