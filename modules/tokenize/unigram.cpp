#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "fields.hpp"
#include "utf8.hpp"
#include "vocabulary.hpp"
#include "word_model.hpp"

import tessera.base;

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;

/// SentencePiece's unigram model: the tokens of a word whose scores have the largest sum (Viterbi).
/// What no token covers is unknown; unknown characters that follow each other are one token.
class Unigram final : public VocabularyModel {
 public:
  Unigram(const Json& json, const std::string& where) {
    Fields fields(json, where);
    fields.ignore({"type"});
    const Json& list = fields.list("vocab");
    std::vector<std::string> tokens;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Json& entry = list[i];
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
          !entry[1].is_number()) {
        fail_input({.thing = fmt::format("{}[{}]", fields.path("vocab"), i),
                    .wrong = "is not a token and its score",
                    .got = json_shown(entry)});
      }
      tokens.push_back(entry[0].get<std::string>());
      scores_.push_back(entry[1].get<double>());
    }
    unknown_ = static_cast<std::int32_t>(fields.integer(
        "unk_id", 0, std::max<std::int64_t>(static_cast<std::int64_t>(tokens.size()), 1) - 1, -1));
    byte_fallback_ = fields.flag("byte_fallback", false);
    fields.finish();
    vocabulary_ = Vocabulary(std::move(tokens));
    for (std::size_t id = 0; id < scores_.size(); ++id) {
      const std::string_view token = *vocabulary_.tokens()[id];
      if (!token.empty()) {
        trie_.add(token, *vocabulary_.find(token));
      }
      lowest_ = std::min(lowest_, scores_[id]);
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      bytes_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
    }
  }

  void encode(std::string_view word, std::vector<Part>& parts) const override {
    struct Node {
      double score = 0;
      std::uint32_t begin = none;  // where the token that ends here begins
      std::int32_t id = 0;
    };
    const double unknown_score = lowest_ - 10;
    std::vector<Node> nodes(word.size() + 1);
    const auto offer = [&](std::size_t end, double score, std::size_t begin, std::int32_t id) {
      Node& node = nodes[end];
      if (node.begin == none || score > node.score) {
        node = {score, static_cast<std::uint32_t>(begin), id};
      }
    };
    for (std::size_t at = 0; at < word.size();) {
      const double till_here = nodes[at].score;
      const std::size_t size = character_at(word, at).bytes;
      bool has_single = false;
      std::uint32_t node = Trie::root;
      for (std::size_t end = at; end < word.size();) {
        node = trie_.next(node, word[end]);
        if (node == Trie::none) {
          break;
        }
        ++end;
        if (const std::int32_t id = trie_.value(node); id >= 0) {
          offer(end, scores_[static_cast<std::size_t>(id)] + till_here, at, id);
          has_single = has_single || end - at == size;
        }
      }
      if (!has_single) {
        if (unknown_ < 0) {
          fail_input(
              {.thing = "tokenizer",
               .wrong = "a character of the text is in no token, and the model has no unk_id"});
        }
        offer(at + size, unknown_score + till_here, at, unknown_);
      }
      at += size;
    }
    const std::size_t first = parts.size();
    for (std::size_t end = word.size(); end > 0;) {
      const Node& node = nodes[end];
      const auto bytes = static_cast<std::uint32_t>(end - node.begin);
      if (node.id == unknown_ && parts.size() > first && parts.back().id == unknown_) {
        parts.back().bytes += bytes;
      } else {
        parts.push_back({node.id, bytes});
      }
      end = node.begin;
    }
    std::reverse(parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end());
    name_unknown(word, parts, first);
  }

 private:
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

  /// What is unknown may have tokens for its bytes, or be a token as a whole.
  void name_unknown(std::string_view word, std::vector<Part>& parts, std::size_t first) const {
    std::vector<Part> named;
    bool changed = false;
    std::size_t at = 0;
    for (std::size_t i = first; i < parts.size(); ++i) {
      const Part part = parts[i];
      const std::string_view text = word.substr(at, part.bytes);
      at += part.bytes;
      const auto whole = part.id == unknown_ ? vocabulary_.find(text) : std::nullopt;
      if (whole) {
        changed = changed || *whole != part.id;
        named.push_back({*whole, part.bytes});
      } else if (part.id == unknown_ && byte_fallback_ && std::ranges::all_of(text, [&](char c) {
                   return bytes_[static_cast<unsigned char>(c)] >= 0;
                 })) {
        changed = true;
        for (const char c : text) {
          named.push_back({bytes_[static_cast<unsigned char>(c)], 1});
        }
      } else {
        named.push_back(part);
      }
    }
    if (changed) {
      parts.resize(first);
      parts.insert(parts.end(), named.begin(), named.end());
    }
  }

  std::vector<double> scores_;
  double lowest_ = std::numeric_limits<double>::infinity();
  Trie trie_;
  std::int32_t unknown_ = -1;
  bool byte_fallback_ = false;
  std::int32_t bytes_[256] = {};
};

}  // namespace

std::unique_ptr<WordModel> read_unigram(const Json& json, const std::string& where) {
  return std::make_unique<Unigram>(json, where);
}

}  // namespace tessera::tokenize
