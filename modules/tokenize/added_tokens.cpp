#include "added_tokens.hpp"

#include <algorithm>

#include "utf8.hpp"

namespace tessera::tokenize {

void AddedTokens::add(const AddedToken& token, std::string_view text) {
  if (text.empty()) {
    return;
  }
  trie_.add(text, static_cast<std::int32_t>(tokens_.size()));
  tokens_.push_back(token);
  bool& first = first_[static_cast<unsigned char>(text[0])];
  firsts_ += first ? 0 : 1;
  first = true;
  only_first_ = text[0];
}

void AddedTokens::find(std::string_view text, bool parse_special,
                       std::vector<Section>& sections) const {
  std::size_t done = 0;
  const auto add = [&](std::size_t begin, std::size_t end, std::int32_t id) {
    sections.push_back({{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)}, id});
  };
  for (std::size_t at = 0; at < text.size();) {
    if (firsts_ == 1) {
      at = std::min(text.find(only_first_, at), text.size());
    } else {
      while (at < text.size() && !first_[static_cast<unsigned char>(text[at])]) {
        ++at;
      }
    }
    const AddedToken* token = nullptr;
    std::size_t stop = at;
    std::uint32_t node = Trie::root;
    for (std::size_t end = at; end < text.size();) {
      node = trie_.next(node, text[end]);
      if (node == Trie::none) {
        break;
      }
      ++end;
      if (trie_.value(node) >= 0) {
        token = &tokens_[static_cast<std::size_t>(trie_.value(node))];
        stop = end;
      }
    }
    if (token == nullptr) {
      ++at;
      continue;
    }
    // The library looks for the next token after this one, and not after the white space that it
    // takes: a token of white space is found there again.
    std::size_t start = at;
    at = stop;
    if (token->special && !parse_special) {
      continue;
    }
    if (token->single_word &&
        ((start > 0 && is_word(character_at(text, character_before(text, start)).code)) ||
         (stop < text.size() && is_word(character_at(text, stop).code)))) {
      continue;
    }
    while (token->strip_left && start > done) {
      const std::size_t before = character_before(text, start);
      if (!is_white_space(character_at(text, before).code)) {
        break;
      }
      start = before;
    }
    start = token->strip_left ? std::min(std::max(start, done), stop) : start;
    while (token->strip_right && stop < text.size() &&
           is_white_space(character_at(text, stop).code)) {
      stop += character_at(text, stop).bytes;
    }
    if (done < start) {
      add(done, start, -1);
    }
    add(start, stop, token->id);
    done = stop;
  }
  if (done < text.size()) {
    add(done, text.size(), -1);
  }
}

}  // namespace tessera::tokenize
