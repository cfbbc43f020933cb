// Tokens that are found in a text before anything else divides it.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text.hpp"
#include "vocabulary.hpp"

namespace tessera::tokenize {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;   // found in the normalized text, in its normalized form
  bool single_word = false;  // not within a word
  bool strip_left = false;   // takes the white space before it
  bool strip_right = false;
};

/// A part of a text: a token, or what is between tokens (id -1).
struct Section {
  Piece piece;
  std::int32_t id = -1;
};

/// Finds tokens from left to right, the longest at each place.
class AddedTokens {
 public:
  /// `text`: what is found, in the place of the token's content.
  void add(const AddedToken& token, std::string_view text);
  bool empty() const { return tokens_.empty(); }
  /// Appends the sections of a text, which cover it. `parse_special`: special tokens are found.
  void find(std::string_view text, bool parse_special, std::vector<Section>& sections) const;

 private:
  std::vector<AddedToken> tokens_;
  Trie trie_;  // its values are places in tokens_
  std::array<bool, 256> first_{};
  int firsts_ = 0;
  char only_first_ = 0;
};

}  // namespace tessera::tokenize
