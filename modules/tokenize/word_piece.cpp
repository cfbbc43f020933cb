#include <fmt/format.h>

#include <utility>

#include "fields.hpp"
#include "utf8.hpp"
#include "vocabulary.hpp"
#include "word_model.hpp"

import tessera.base;

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;

/// BERT's: from the beginning of a word the longest token each time; a word for which that fails is
/// unknown as a whole.
class WordPiece final : public VocabularyModel {
 public:
  WordPiece(const Json& json, const std::string& where) {
    Fields fields(json, where);
    fields.ignore({"type"});
    vocabulary_ = Vocabulary(fields.object("vocab"), fields.path("vocab"));
    unknown_ = vocabulary_.require(fields.text("unk_token"), fields.path("unk_token"));
    prefix_ = fields.text("continuing_subword_prefix", "##");
    longest_ = fields.integer("max_input_chars_per_word", 0, 1 << 30, 100);
    fields.finish();
    const auto& tokens = vocabulary_.tokens();
    for (std::size_t id = 0; id < tokens.size(); ++id) {
      if (!tokens[id] || tokens[id]->empty()) {
        continue;
      }
      const std::string_view token = *tokens[id];
      first_.add(token, static_cast<std::int32_t>(id));
      if (token.starts_with(prefix_) && token.size() > prefix_.size()) {
        later_.add(token.substr(prefix_.size()), static_cast<std::int32_t>(id));
      }
    }
  }

  void encode(std::string_view word, std::vector<Part>& parts) const override {
    const std::size_t before = parts.size();
    bool known = count_characters(word) <= longest_;
    for (std::size_t at = 0; known && at < word.size();) {
      const Trie& trie = at == 0 ? first_ : later_;
      std::uint32_t node = Trie::root;
      Part best = {-1, 0};
      for (std::size_t end = at; end < word.size();) {
        node = trie.next(node, word[end]);
        if (node == Trie::none) {
          break;
        }
        ++end;
        if (trie.value(node) >= 0) {
          best = {trie.value(node), static_cast<std::uint32_t>(end - at)};
        }
      }
      known = best.id >= 0;
      parts.push_back(best);
      at += best.bytes;
    }
    if (!known) {
      parts.resize(before);
      parts.push_back({unknown_, static_cast<std::uint32_t>(word.size())});
    }
  }

 private:
  Trie first_, later_;
  std::int32_t unknown_ = 0;
  std::string prefix_;
  std::int64_t longest_ = 0;
};

/// Words are tokens, or unknown.
class WordLevel final : public VocabularyModel {
 public:
  WordLevel(const Json& json, const std::string& where) {
    Fields fields(json, where);
    fields.ignore({"type"});
    vocabulary_ = Vocabulary(fields.object("vocab"), fields.path("vocab"));
    unknown_ = vocabulary_.require(fields.text("unk_token"), fields.path("unk_token"));
    fields.finish();
  }
  void encode(std::string_view word, std::vector<Part>& parts) const override {
    parts.push_back(
        {vocabulary_.find(word).value_or(unknown_), static_cast<std::uint32_t>(word.size())});
  }

 private:
  std::int32_t unknown_ = 0;
};

/// The model's type; early files do not say it.
std::string type_of(const Json& json) {
  if (json.is_object() && !json.contains("type")) {
    return json.contains("merges")                              ? "BPE"
           : json.contains("vocab") && json["vocab"].is_array() ? "Unigram"
           : json.contains("max_input_chars_per_word")          ? "WordPiece"
                                                                : "WordLevel";
  }
  return json.is_object() && json["type"].is_string() ? json["type"].get<std::string>() : "";
}

}  // namespace

bool takes_bytes(const Json& json) { return type_of(json) == "BPE"; }

std::unique_ptr<WordModel> read_word_model(const Json& json, const std::string& where,
                                           bool words_are_bytes) {
  Fields fields(json, where);
  const std::string type = json.contains("type")
                               ? fields.choice("type", {"BPE", "Unigram", "WordPiece", "WordLevel"})
                               : type_of(json);
  if (type == "BPE") {
    return read_bpe(json, where, words_are_bytes);
  }
  if (type == "Unigram") {
    return read_unigram(json, where);
  }
  return type == "WordPiece" ? std::make_unique<WordPiece>(json, where)
                             : std::unique_ptr<WordModel>(std::make_unique<WordLevel>(json, where));
}

}  // namespace tessera::tokenize
