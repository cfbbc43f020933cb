#include "pretokenize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <tessera/shown.hpp>
#include <utility>

#include "byte_level.hpp"
#include "fields.hpp"
#include "utf8.hpp"

import tessera.base;

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;

/// Treatment of the matches.
enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Piece piece_of(const Match& match) { return {match.begin, match.end}; }

/// Appends the words that the parts of one piece make. Empty ones are dropped.
void join(const std::vector<Match>& parts, Behavior behavior, std::vector<Piece>& pieces) {
  const std::size_t first = pieces.size();
  bool before = false;  // whether the part before was a match
  switch (behavior) {
    case Behavior::removed:
      for (const Match& part : parts) {
        if (!part.matches && part.begin < part.end) {
          pieces.push_back(piece_of(part));
        }
      }
      return;
    case Behavior::isolated:
      for (const Match& part : parts) {
        if (part.begin < part.end) {
          pieces.push_back(piece_of(part));
        }
      }
      return;
    case Behavior::contiguous:
      for (const Match& part : parts) {
        if (part.matches == before && pieces.size() > first) {
          pieces.back().end = part.end;
        } else {
          pieces.push_back(piece_of(part));
        }
        before = part.matches;
      }
      break;
    case Behavior::merged_with_previous:
      for (const Match& part : parts) {
        if (part.matches && !before && pieces.size() > first) {
          pieces.back().end = part.end;
        } else {
          pieces.push_back(piece_of(part));
        }
        before = part.matches;
      }
      break;
    case Behavior::merged_with_next:
      for (std::size_t i = parts.size(); i-- > 0;) {
        const Match& part = parts[i];
        if (part.matches && !before && pieces.size() > first) {
          pieces.back().begin = part.begin;
        } else {
          pieces.push_back(piece_of(part));
        }
        before = part.matches;
      }
      std::reverse(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end());
      break;
  }
  pieces.erase(std::remove_if(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end(),
                              [](const Piece& piece) { return piece.begin == piece.end; }),
               pieces.end());
}

/// Parts by a property of a single character, each match of one character.
template <class Property>
void find_characters(std::string_view text, Piece piece, const Property& property,
                     std::vector<Match>& parts) {
  std::uint32_t done = piece.begin;
  for (std::uint32_t at = piece.begin; at < piece.end;) {
    const Character c = character_at(text, at);
    const std::uint32_t next = at + static_cast<std::uint32_t>(c.bytes);
    if (property(c.code)) {
      if (done < at) {
        parts.push_back({done, at, false});
      }
      parts.push_back({at, next, true});
      done = next;
    }
    at = next;
  }
  if (done < piece.end) {
    parts.push_back({done, piece.end, false});
  }
}

/// Divides every piece on its own: `find(view of the text, piece, parts)`.
template <class Find>
void split_each(const Text& text, std::vector<Piece>& pieces, SplitSpace& space, Behavior behavior,
                const Find& find) {
  space.pieces.clear();
  for (const Piece piece : pieces) {
    space.parts.clear();
    find(text.view(), piece, space.parts);
    join(space.parts, behavior, space.pieces);
  }
  std::swap(pieces, space.pieces);
}

class SplitByRegex final : public PreTokenizer {
 public:
  SplitByRegex(Regex regex, Behavior behavior, bool inverted)
      : regex_(std::move(regex)), behavior_(behavior), inverted_(inverted) {}

  void apply(Text& text, std::vector<Piece>& pieces, SplitSpace& space) const override {
    split_each(text, pieces, space, behavior_,
               [&](std::string_view view, Piece piece, std::vector<Match>& parts) {
                 regex_.find_all(view.substr(piece.begin, piece.end - piece.begin), piece.begin,
                                 *text.allowance, parts);
                 if (inverted_) {
                   for (Match& part : parts) {
                     part.matches = !part.matches;
                   }
                 }
               });
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool inverted_;
};

class SplitByCharacter final : public PreTokenizer {
 public:
  SplitByCharacter(std::function<bool(char32_t)> property, Behavior behavior)
      : property_(std::move(property)), behavior_(behavior) {}

  void apply(Text& text, std::vector<Piece>& pieces, SplitSpace& space) const override {
    split_each(text, pieces, space, behavior_,
               [&](std::string_view view, Piece piece, std::vector<Match>& parts) {
                 find_characters(view, piece, property_, parts);
               });
  }

 private:
  std::function<bool(char32_t)> property_;
  Behavior behavior_;
};

/// "Whitespace": words, and runs of what is neither a word nor white space.
class Words final : public PreTokenizer {
 public:
  void apply(Text& text, std::vector<Piece>& pieces, SplitSpace& space) const override {
    const auto kind = [](char32_t c) { return is_word(c) ? 2 : is_white_space(c) ? 0 : 1; };
    const std::string_view view = text.view();
    space.pieces.clear();
    for (const Piece piece : pieces) {
      for (std::uint32_t at = piece.begin; at < piece.end;) {
        const std::uint32_t begin = at;
        const int first = kind(character_at(view, at).code);
        do {
          at += static_cast<std::uint32_t>(character_at(view, at).bytes);
        } while (at < piece.end && kind(character_at(view, at).code) == first);
        if (first != 0) {
          space.pieces.push_back({begin, at});
        }
      }
    }
    std::swap(pieces, space.pieces);
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(std::int64_t length) : length_(length) {}

  void apply(Text& text, std::vector<Piece>& pieces, SplitSpace& space) const override {
    space.pieces.clear();
    for (const Piece piece : pieces) {
      for (std::uint32_t at = piece.begin; at < piece.end;) {
        const std::uint32_t begin = at;
        for (std::int64_t i = 0; i < length_ && at < piece.end; ++i) {
          at += static_cast<std::uint32_t>(character_at(text.view(), at).bytes);
        }
        space.pieces.push_back({begin, at});
      }
    }
    std::swap(pieces, space.pieces);
  }

 private:
  std::int64_t length_;
};

/// Writes every piece again: `change(piece, out)`. Bytes between pieces are dropped.
template <class Change>
void rewrite_each(Text& text, std::vector<Piece>& pieces, const Change& change) {
  Rewriter out(text);
  for (Piece& piece : pieces) {
    const auto begin = static_cast<std::uint32_t>(out.size());
    change(piece, out);
    piece = {begin, static_cast<std::uint32_t>(out.size())};
  }
  out.finish();
}

/// A space before every piece that does not begin with one.
class PrefixSpace final : public PreTokenizer {
 public:
  void apply(Text& text, std::vector<Piece>& pieces, SplitSpace& /*space*/) const override {
    rewrite_each(text, pieces, [&](Piece piece, Rewriter& out) {
      if (!text.view(piece).starts_with(' ')) {
        out.put(std::string_view(" "), piece.begin, piece.begin);
      }
      out.keep(piece.begin, piece.end);
    });
  }
};

/// The characters of GPT-2's alphabet for the bytes.
class ByteCharacters final : public PreTokenizer {
 public:
  void apply(Text& text, std::vector<Piece>& pieces, SplitSpace& /*space*/) const override {
    rewrite_each(text, pieces, [&](Piece piece, Rewriter& out) {
      for (std::uint32_t at = piece.begin; at < piece.end; ++at) {
        out.put(byte_level_text(static_cast<unsigned char>(text.view()[at])), at, at + 1);
      }
    });
  }
};

class Metaspace final : public PreTokenizer {
 public:
  enum class Prepend { always, first, never };
  Metaspace(char32_t replacement, Prepend prepend, bool split)
      : character_(replacement), prepend_(prepend), split_(split) {
    append_utf8(replacement_, replacement);
  }

  bool needs_sources() const override { return prepend_ == Prepend::first; }

  void apply(Text& text, std::vector<Piece>& pieces, SplitSpace& space) const override {
    rewrite_each(text, pieces, [&](Piece piece, Rewriter& out) {
      const std::string_view view = text.view(piece);
      const bool has_one = view.starts_with(' ') || view.starts_with(replacement_);
      if (!has_one && (prepend_ == Prepend::always ||
                       (prepend_ == Prepend::first && text.source(piece.begin).begin == 0))) {
        out.put(replacement_, piece.begin, piece.begin);
      }
      for (std::uint32_t at = piece.begin; at < piece.end;) {
        const auto next = static_cast<std::uint32_t>(
            piece.begin + std::min(view.find(' ', at - piece.begin), view.size()));
        out.keep(at, next);
        at = next;
        if (at < piece.end) {
          out.put(replacement_, at, at + 1);
          ++at;
        }
      }
    });
    if (split_) {
      split_each(text, pieces, space, Behavior::merged_with_next,
                 [&](std::string_view view, Piece piece, std::vector<Match>& parts) {
                   find_characters(view, piece, [&](char32_t c) { return c == character_; }, parts);
                 });
    }
  }

 private:
  char32_t character_;
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

/// GPT-2's pattern.
constexpr std::string_view byte_level_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Behavior read_behavior(Fields& fields, bool required) {
  if (!required && !fields.has("behavior")) {
    return Behavior::isolated;
  }
  const std::string name = fields.choice(
      "behavior", {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"});
  return name == "Removed"              ? Behavior::removed
         : name == "Isolated"           ? Behavior::isolated
         : name == "MergedWithPrevious" ? Behavior::merged_with_previous
         : name == "MergedWithNext"     ? Behavior::merged_with_next
                                        : Behavior::contiguous;
}

struct Reader {
  PreTokenizers out;
  bool last_is_byte_level = false;

  template <class Step, class... A>
  void add(A&&... arguments) {
    out.steps.push_back(std::make_unique<Step>(std::forward<A>(arguments)...));
  }

  void read_split(Fields& fields) {
    Fields pattern(fields.object("pattern"), fields.path("pattern"));
    Regex regex = pattern.has("Regex")
                      ? Regex(pattern.text("Regex"), Dialect::ruby, pattern.path("Regex"))
                      : Regex::literal(pattern.text("String"));
    pattern.finish();
    const Behavior behavior = read_behavior(fields, true);
    add<SplitByRegex>(std::move(regex), behavior, fields.flag("invert", false));
  }

  void read_metaspace(Fields& fields) {
    const char32_t replacement = fields.character("replacement");
    std::string scheme = fields.has("prepend_scheme")
                             ? fields.choice("prepend_scheme", {"always", "first", "never"})
                             : "always";
    if (!fields.flag("add_prefix_space", true)) {
      if (fields.has("prepend_scheme") && scheme != "never") {
        fields.wrong("prepend_scheme", "never, since add_prefix_space is false");
      }
      scheme = "never";
    }
    fields.ignore({"str_rep"});
    add<Metaspace>(replacement,
                   scheme == "always"  ? Metaspace::Prepend::always
                   : scheme == "first" ? Metaspace::Prepend::first
                                       : Metaspace::Prepend::never,
                   fields.flag("split", true));
  }

  void read_byte_level(Fields& fields) {
    if (fields.flag("add_prefix_space", true)) {
      add<PrefixSpace>();
    }
    if (fields.flag("use_regex", true)) {
      add<SplitByRegex>(Regex(byte_level_pattern, Dialect::ruby, fields.where()),
                        Behavior::isolated, false);
    }
    fields.ignore({"trim_offsets"});  // offsets cover the spaces here
    add<ByteCharacters>();
  }

  void read(const Json& json, const std::string& where) {
    Fields fields(json, where);
    const std::string type = fields.choice(
        "type", {"Sequence", "ByteLevel", "Split", "Metaspace", "Whitespace", "WhitespaceSplit",
                 "Punctuation", "Digits", "BertPreTokenizer", "CharDelimiterSplit", "FixedLength"});
    last_is_byte_level = type == "ByteLevel";
    if (type == "Sequence") {
      const Json& list = fields.list("pretokenizers");
      for (std::size_t i = 0; i < list.size(); ++i) {
        read(list[i], fmt::format("{}.pretokenizers[{}]", where, i));
      }
    } else if (type == "ByteLevel") {
      read_byte_level(fields);
    } else if (type == "Split") {
      read_split(fields);
    } else if (type == "Metaspace") {
      read_metaspace(fields);
    } else if (type == "Whitespace") {
      add<Words>();
    } else if (type == "WhitespaceSplit") {
      add<SplitByCharacter>(is_white_space, Behavior::removed);
    } else if (type == "Punctuation") {
      add<SplitByCharacter>(is_punctuation, read_behavior(fields, false));
    } else if (type == "Digits") {
      add<SplitByCharacter>(is_numeric, fields.flag("individual_digits", false)
                                            ? Behavior::isolated
                                            : Behavior::contiguous);
    } else if (type == "BertPreTokenizer") {
      add<SplitByCharacter>(is_white_space, Behavior::removed);
      add<SplitByCharacter>(is_punctuation, Behavior::isolated);
    } else if (type == "CharDelimiterSplit") {
      add<SplitByCharacter>([one = fields.character("delimiter")](char32_t c) { return c == one; },
                            Behavior::removed);
    } else {
      add<FixedLength>(fields.integer("length", 1, 1 << 20, 5));
    }
    fields.finish();
    if (out.steps.size() > most_steps) {
      fail_input(
          {.thing = where,
           .wrong = fmt::format("there are too many steps (expected at most {})", most_steps)});
    }
    for (std::unique_ptr<PreTokenizer>& step : out.steps) {
      step->where = step->where.empty() ? where : step->where;
    }
  }
};

}  // namespace

PreTokenizers read_pre_tokenizers(const Json& json, const std::string& where,
                                  bool model_takes_bytes) {
  Reader reader;
  if (!json.is_null()) {
    reader.read(json, where);
  }
  if (reader.last_is_byte_level && model_takes_bytes) {
    reader.out.steps.pop_back();
    reader.out.words_are_bytes = true;
  }
  return std::move(reader.out);
}

std::unique_ptr<PreTokenizer> split_isolated(Regex regex) {
  return std::make_unique<SplitByRegex>(std::move(regex), Behavior::isolated, false);
}

}  // namespace tessera::tokenize
