// Words that were turned into tokens before.
#pragma once
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "word_model.hpp"

namespace tessera::tokenize {

/// Keeps the tokens of words that are at most `longest` bytes long. A word has one place, by its
/// hash, and replaces what is there; when the space for texts and tokens is used up, all are
/// dropped. So its size is bounded (about 8 MiB), whatever the texts are.
class WordCache {
 public:
  /// The word's tokens, from the model where they are not kept. Valid until the next call.
  std::span<const Part> find(std::string_view word, const WordModel& model) {
    if (word.size() > longest) {
      fresh_.clear();
      model.encode(word, fresh_);
      return fresh_;
    }
    if (places_.empty()) {
      places_.resize(places);
      texts_.reserve(most_text);
    }
    const std::uint64_t hash = XXH3_64bits(word.data(), word.size());
    CacheSlot& place = places_[hash & (places - 1)];
    if (place.hash == hash && place.text_size == word.size() &&
        std::memcmp(texts_.data() + place.text, word.data(), word.size()) == 0) {
      return {parts_.data() + place.part, place.parts};
    }
    if (texts_.size() + word.size() > most_text) {
      texts_.clear();
      parts_.clear();
      std::fill(places_.begin(), places_.end(), CacheSlot{});
    }
    const std::size_t part = parts_.size();
    model.encode(word, parts_);  // may throw
    place = {hash, static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint32_t>(part),
             static_cast<std::uint16_t>(word.size()),
             static_cast<std::uint16_t>(parts_.size() - part)};
    texts_ += word;
    return {parts_.data() + place.part, place.parts};
  }

 private:
  static constexpr std::size_t longest = 128;
  static constexpr std::size_t places = std::size_t{1} << 16;
  static constexpr std::size_t most_text = std::size_t{2} << 20;
  struct CacheSlot {
    std::uint64_t hash = 0;
    std::uint32_t text = 0;
    std::uint32_t part = 0;
    std::uint16_t text_size = 0;  // 0: nothing is here
    std::uint16_t parts = 0;
  };
  std::vector<CacheSlot> places_;
  std::string texts_;
  std::vector<Part> parts_;
  std::vector<Part> fresh_;
};

}  // namespace tessera::tokenize
