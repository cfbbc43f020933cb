// From a text to tokens by the steps of tokenizer.json, which tiktoken's are a part of. Plain C++.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.hpp"
#include "normalize.hpp"
#include "pretokenize.hpp"
#include "text.hpp"
#include "word_cache.hpp"
#include "word_model.hpp"

namespace tessera::tokenize {

/// Takes the tokens in their order.
struct TokenSink {
  std::vector<std::int32_t>& ids;
  std::vector<Source>* sources = nullptr;  // null: nobody asks for them
  void add(std::int32_t id, Source source) {
    ids.push_back(id);
    if (sources != nullptr) {
      sources->push_back(source);
    }
  }
};

class Pipeline {
 public:
  AddedTokens added;             // found in the text as it is
  AddedTokens normalized_added;  // found in the normalized text
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  std::unique_ptr<WordModel> model;

  /// Safe to call from several threads. Error (input): the text is too large.
  void encode(std::string_view text, bool parse_special, TokenSink& sink) const;
  /// A text as the normalizers leave it.
  std::string normalized(std::string_view text) const;

 private:
  /// Memory that one thread works with, kept for the next text.
  struct Work {
    Allowance allowance;
    Text whole, normal, words;
    std::vector<Section> sections, inner;
    std::vector<Piece> pieces;
    SplitSpace split;
    WordCache cache;
  };
  std::unique_ptr<Work> take() const;
  void give(std::unique_ptr<Work> work) const;
  void add_word(const Text& words, Piece piece, Work& work, TokenSink& sink) const;
  void encode_words(const Text& text, Piece part, bool tracked, Work& work, TokenSink& sink) const;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Work>> idle_;
};

}  // namespace tessera::tokenize
