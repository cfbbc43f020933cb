#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <queue>
#include <tessera/shown.hpp>
#include <unordered_map>

#include "byte_level.hpp"
#include "fields.hpp"
#include "flat_map.hpp"
#include "utf8.hpp"
#include "word_model.hpp"

import tessera.base;

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;

struct Merge {
  std::uint32_t rank = 0;
  std::int32_t id = 0;  // of the token that the two become
};

constexpr std::uint32_t never = std::numeric_limits<std::uint32_t>::max();

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

/// Byte pair encoding: of two neighbours with the lowest rank, the leftmost, becomes one, until
/// there is none.
class Merges {
 public:
  void reserve(std::size_t count) { merges_.reserve(count); }
  void add(std::int32_t left, std::int32_t right, Merge merge) {
    // A pair that is given twice has the later rank, as in Hugging Face's library.
    merges_[pair_of(left, right)] = merge;
  }

  /// Merges the parts from `first` on.
  void apply(std::vector<Part>& parts, std::size_t first) const {
    const std::size_t count = parts.size() - first;
    if (count < 2) {
      return;
    }
    if (count <= small) {
      parts.resize(first + apply_small(parts.data() + first, count));
    } else {
      apply_large(parts, first);
    }
  }

 private:
  static constexpr std::size_t small = 48;

  Merge find(const Part& left, const Part& right) const {
    const Merge* found = merges_.find(pair_of(left.id, right.id));
    return found == nullptr ? Merge{never, 0} : *found;
  }

  std::size_t apply_small(Part* parts, std::size_t count) const {
    Merge next[small];  // of each part with the one after it
    for (std::size_t i = 0; i + 1 < count; ++i) {
      next[i] = find(parts[i], parts[i + 1]);
    }
    while (count > 1) {
      std::size_t best = 0;
      std::uint32_t rank = never;
      for (std::size_t i = 0; i + 1 < count; ++i) {
        if (next[i].rank < rank) {
          rank = next[i].rank;
          best = i;
        }
      }
      if (rank == never) {
        break;
      }
      parts[best] = {next[best].id, parts[best].bytes + parts[best + 1].bytes};
      --count;
      std::memmove(parts + best + 1, parts + best + 2, (count - best - 1) * sizeof(Part));
      std::memmove(next + best, next + best + 1, (count - best) * sizeof(Merge));
      if (best > 0) {
        next[best - 1] = find(parts[best - 1], parts[best]);
      }
      if (best + 1 < count) {
        next[best] = find(parts[best], parts[best + 1]);
      }
    }
    return count;
  }

  /// Applies merges in time that grows as n log n.
  void apply_large(std::vector<Part>& parts, std::size_t first) const {
    struct Link {
      std::size_t before, after;
    };
    struct Candidate {
      Merge merge;
      std::size_t at;
      std::int32_t left, right;
      bool operator>(const Candidate& other) const {
        return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : at > other.at;
      }
    };
    constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
    const std::size_t count = parts.size() - first;
    Part* const all = parts.data() + first;
    std::vector<Link> links(count);
    std::vector<Candidate> heap;
    const auto candidate = [&](std::size_t left, std::size_t right) {
      return Candidate{find(all[left], all[right]), left, all[left].id, all[right].id};
    };
    for (std::size_t i = 0; i < count; ++i) {
      links[i] = {i == 0 ? none : i - 1, i + 1 == count ? none : i + 1};
      if (i + 1 < count) {
        if (const Candidate one = candidate(i, i + 1); one.merge.rank != never) {
          heap.push_back(one);
        }
      }
    }
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>{},
                                                                                 std::move(heap));
    const auto consider = [&](std::size_t left, std::size_t right) {
      if (const Candidate one = candidate(left, right); one.merge.rank != never) {
        queue.push(one);
      }
    };
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      const std::size_t right = all[best.at].id < 0 ? none : links[best.at].after;
      if (right == none || all[best.at].id != best.left || all[right].id != best.right) {
        continue;  // one of the two has become something else
      }
      all[best.at] = {best.merge.id, all[best.at].bytes + all[right].bytes};
      all[right].id = -1;
      links[best.at].after = links[right].after;
      if (links[best.at].after != none) {
        links[links[best.at].after].before = best.at;
        consider(best.at, links[best.at].after);
      }
      if (links[best.at].before != none) {
        consider(links[best.at].before, best.at);
      }
    }
    parts.erase(std::remove_if(parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end(),
                               [](const Part& part) { return part.id < 0; }),
                parts.end());
  }

  FlatMap<Merge> merges_;
};

/// tiktoken's tokens of bytes.
class RankedBytes final : public WordModel {
 public:
  RankedBytes(std::vector<std::string> tokens, const std::string& where) {
    tokens_.reserve(tokens.size());
    std::size_t longest_sum = 0;
    for (std::string& token : tokens) {
      longest_sum += token.size();
      tokens_.push_back(token.empty() ? std::nullopt : std::optional(std::move(token)));
    }
    ids_.reserve(tokens_.size());
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (tokens_[id] && !ids_.emplace(*tokens_[id], static_cast<std::int32_t>(id)).second) {
        fail_input({.thing = where,
                    .wrong = fmt::format("the ranks {} and {} have the same bytes",
                                         ids_.at(*tokens_[id]), id)});
      }
    }
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      const auto at = ids_.find(std::string_view(&c, 1));
      if (at == ids_.end()) {
        fail_input({.thing = where,
                    .wrong = fmt::format("no token stands for byte 0x{:02X}", byte),
                    .expected = "a token for each byte"});
      }
      bytes_[byte] = at->second;
    }
    // Two neighbours become the token of their bytes, if there is one; the lowest rank first.
    merges_.reserve(longest_sum / 2);
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (!tokens_[id]) {
        continue;
      }
      const std::string_view token = *tokens_[id];
      check_length(token);
      for (std::size_t cut = 1; cut < token.size(); ++cut) {
        const auto left = ids_.find(token.substr(0, cut));
        if (left == ids_.end()) {
          continue;
        }
        const auto right = ids_.find(token.substr(cut));
        if (right != ids_.end()) {
          merges_.add(left->second, right->second,
                      {static_cast<std::uint32_t>(id), static_cast<std::int32_t>(id)});
        }
      }
    }
  }

  void encode(std::string_view word, std::vector<Part>& parts) const override {
    if (const auto whole = find(word)) {
      parts.push_back({*whole, static_cast<std::uint32_t>(word.size())});
      return;
    }
    const std::size_t first = parts.size();
    for (const char c : word) {
      parts.push_back({bytes_[static_cast<unsigned char>(c)], 1});
    }
    merges_.apply(parts, first);
  }
  const std::vector<std::optional<std::string>>& tokens() const override { return tokens_; }
  std::optional<std::int32_t> find(std::string_view token) const override {
    const auto at = ids_.find(token);
    return at == ids_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  std::vector<std::optional<std::string>> tokens_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::int32_t bytes_[256] = {};
  Merges merges_;
};

/// The model "BPE" of tokenizer.json.
class Bpe final : public VocabularyModel {
 public:
  Bpe(const Json& json, const std::string& where, bool words_are_bytes)
      : words_are_bytes_(words_are_bytes) {
    Fields fields(json, where);
    fields.ignore({"type"});
    vocabulary_ = Vocabulary(fields.object("vocab"), fields.path("vocab"));
    prefix_ = fields.text("continuing_subword_prefix", "");
    suffix_ = fields.text("end_of_word_suffix", "");
    if (const Json* dropout = fields.find("dropout"); dropout != nullptr && *dropout != 0.0) {
      fields.wrong("dropout", "null: a text has the same tokens each time");
    }
    if (fields.has("unk_token")) {
      unknown_ = vocabulary_.require(fields.text("unk_token"), fields.path("unk_token"));
    }
    fuse_unknown_ = fields.flag("fuse_unk", false);
    byte_fallback_ = fields.flag("byte_fallback", false);
    ignore_merges_ = fields.flag("ignore_merges", false);
    read_merges(fields);
    fields.finish();
    read_bytes();
  }

  void encode(std::string_view word, std::vector<Part>& parts) const override {
    if (ignore_merges_) {
      if (const auto whole = words_are_bytes_ ? find_bytes(word) : vocabulary_.find(word)) {
        parts.push_back({*whole, static_cast<std::uint32_t>(word.size())});
        return;
      }
    }
    const std::size_t first = parts.size();
    if (words_are_bytes_ && all_bytes_) {
      for (const char c : word) {
        parts.push_back({bytes_[static_cast<unsigned char>(c)], 1});
      }
    } else {
      begin(word, parts);
    }
    merges_.apply(parts, first);
  }

  std::string_view divides_before() const override {
    return divides_ ? space_mark : std::string_view();
  }

 private:
  /// U+2581, which SentencePiece writes for a space.
  static constexpr std::string_view space_mark = "\xE2\x96\x81";

  /// Whether no merge makes a token in which the mark follows another character.
  static bool keeps_mark_first(std::string_view token) {
    while (token.starts_with(space_mark)) {
      token.remove_prefix(space_mark.size());
    }
    return token.find(space_mark) == std::string_view::npos;
  }

  void read_merges(Fields& fields) {
    const Json& list = fields.list("merges");
    merges_.reserve(list.size());
    // The mark itself must be a token, so that unknown characters do not join across it.
    divides_ = !words_are_bytes_ && !ignore_merges_ && prefix_.empty() && suffix_.empty() &&
               vocabulary_.find(space_mark).has_value();
    std::string whole;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto place = [&] { return fmt::format("{}[{}]", fields.path("merges"), i); };
      std::string_view left;
      std::string_view right;
      if (list[i].is_string()) {
        const auto& text = list[i].get_ref<const std::string&>();
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          fail_input({.thing = place(),
                      .wrong = fmt::format("'{}' is not two tokens with a space between them",
                                           shown(text))});
        }
        left = std::string_view(text).substr(0, space);
        right = std::string_view(text).substr(space + 1);
      } else if (list[i].is_array() && list[i].size() == 2 && list[i][0].is_string() &&
                 list[i][1].is_string()) {
        left = list[i][0].get_ref<const std::string&>();
        right = list[i][1].get_ref<const std::string&>();
      } else {
        fail_input(
            {.thing = place(), .wrong = "is not a pair of tokens", .got = json_shown(list[i])});
      }
      const auto id_of = [&](std::string_view token) {
        const auto id = vocabulary_.find(token);
        return id ? *id : vocabulary_.require(token, place());
      };
      const std::int32_t left_id = id_of(left);
      const std::int32_t right_id = id_of(right);
      whole = left;
      whole += right.substr(std::min(prefix_.size(), right.size()));
      merges_.add(left_id, right_id, {static_cast<std::uint32_t>(i), id_of(whole)});
      divides_ = divides_ && keeps_mark_first(whole);
    }
  }

  /// Reads the tokens of single bytes, in GPT-2's alphabet and as a fallback.
  void read_bytes() {
    all_bytes_ = words_are_bytes_ && prefix_.empty() && suffix_.empty();
    for (unsigned byte = 0; byte < 256; ++byte) {
      bytes_[byte] =
          vocabulary_.find(byte_level_text(static_cast<unsigned char>(byte))).value_or(-1);
      fallback_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
      all_bytes_ = all_bytes_ && bytes_[byte] >= 0;
    }
  }

  std::optional<std::int32_t> find_bytes(std::string_view word) const {
    std::string name;
    for (const char c : word) {
      name += byte_level_text(static_cast<unsigned char>(c));
    }
    return vocabulary_.find(name);
  }

  /// The characters of a word (its bytes, where these are the characters) before any merge.
  void begin(std::string_view word, std::vector<Part>& parts) const {
    const std::size_t first = parts.size();
    std::string name;
    std::uint32_t lost = 0;  // bytes that no token stands for
    Part unknown = {-1, 0};
    const auto add = [&](Part part) {
      part.bytes += std::exchange(lost, 0);
      parts.push_back(part);
    };
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t size = words_are_bytes_ ? 1 : character_at(word, at).bytes;
      const auto bytes = static_cast<std::uint32_t>(size);
      name.clear();
      if (at > 0) {
        name += prefix_;
      }
      name += words_are_bytes_ ? byte_level_text(static_cast<unsigned char>(word[at]))
                               : word.substr(at, size);
      at += size;
      if (at == word.size()) {
        name += suffix_;
      }
      if (const auto id = vocabulary_.find(name)) {
        if (unknown.bytes > 0) {
          add(std::exchange(unknown, {-1, 0}));
        }
        add({*id, bytes});
        continue;
      }
      if (byte_fallback_ && has_bytes(name)) {
        // The reference puts a pending unknown token after the bytes.
        for (std::size_t i = 0; i < name.size(); ++i) {
          add({fallback_[static_cast<unsigned char>(name[i])], i < size ? 1U : 0U});
        }
        continue;
      }
      if (unknown_ < 0) {
        lost += bytes;
      } else if (unknown.bytes > 0 && fuse_unknown_) {
        unknown.bytes += bytes;
      } else {
        if (unknown.bytes > 0) {
          add(unknown);
        }
        unknown = {unknown_, bytes};
      }
    }
    if (unknown.bytes > 0) {
      add(unknown);
    }
    if (lost > 0 && parts.size() > first) {
      parts.back().bytes += lost;
    }
  }

  bool has_bytes(std::string_view name) const {
    for (const char c : name) {
      if (fallback_[static_cast<unsigned char>(c)] < 0) {
        return false;
      }
    }
    return true;
  }

  bool words_are_bytes_;
  std::string prefix_, suffix_;
  std::int32_t unknown_ = -1;
  bool fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false;
  std::int32_t bytes_[256] = {};     // in GPT-2's alphabet
  std::int32_t fallback_[256] = {};  // <0x00> to <0xFF>
  bool all_bytes_ = false;
  bool divides_ = false;
  Merges merges_;
};

}  // namespace

std::unique_ptr<WordModel> read_bpe(const Json& json, const std::string& where,
                                    bool words_are_bytes) {
  return std::make_unique<Bpe>(json, where, words_are_bytes);
}

std::unique_ptr<WordModel> ranked_bytes(std::vector<std::string> tokens, const std::string& where) {
  return std::make_unique<RankedBytes>(std::move(tokens), where);
}

}  // namespace tessera::tokenize
