#include "normalize.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "byte_level.hpp"
#include "fields.hpp"
#include "regex.hpp"
#include "stored_bytes.hpp"
#include "utf8.hpp"

import tessera.base;

namespace tessera::tokenize {
namespace {

using Json = nlohmann::json;

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (c < 0) {
      return false;
    }
  }
  return true;
}

/// A change that looks at one character at a time: `change(character, begin, end, out)`.
template <class Change>
void each_character(Text& text, const Change& change) {
  const std::string_view view = text.view();
  Rewriter out(text);
  for (std::size_t at = 0; at < view.size();) {
    const Character c = character_at(view, at);
    change(c.code, at, at + c.bytes, out);
    at += c.bytes;
  }
  out.finish();
}

// NFC, NFD, NFKC, NFKD

constexpr std::size_t composed_limit = 0x30000;

/// Whether a character can be the second one of a composition, so that a text cannot be normalized
/// in two parts before it. From the decompositions of all characters.
const std::vector<bool>& composition_seconds() {
  static const std::vector<bool> seconds = [] {
    std::vector<bool> table(composed_limit);
    for (utf8proc_int32_t code = 0x80; code < static_cast<utf8proc_int32_t>(composed_limit);
         ++code) {
      std::array<utf8proc_int32_t, 32> parts{};
      int last_class = 0;
      const utf8proc_ssize_t count = utf8proc_decompose_char(
          code, parts.data(), parts.size(),
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &last_class);
      if (count >= 2 && count <= static_cast<utf8proc_ssize_t>(parts.size())) {
        const auto last = static_cast<std::size_t>(parts[static_cast<std::size_t>(count - 1)]);
        if (last < composed_limit) {
          table[last] = true;
        }
      }
    }
    return table;
  }();
  return seconds;
}

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(int options) : options_(options | UTF8PROC_STABLE) {}

  void apply(Text& text) const override {
    if (is_ascii(text.view())) {
      return;
    }
    const std::string_view view = text.view();
    Rewriter out(text);
    std::vector<utf8proc_int32_t> space(32);
    for (std::size_t begin = 0; begin < view.size();) {
      std::size_t end = begin;
      while (end < view.size() && view[end] >= 0) {
        ++end;
      }
      if (end < view.size() && end > begin) {
        --end;  // a mark may follow the last one
      }
      if (end > begin) {
        out.keep(begin, end);
        begin = end;
        continue;
      }
      end = begin + character_at(view, begin).bytes;
      while (end < view.size() && !is_boundary(character_at(view, end).code)) {
        end += character_at(view, end).bytes;
      }
      normalize(view, begin, end, space, out);
      begin = end;
    }
    out.finish();
  }

 private:
  /// Whether what is before this character does not change how it is normalized.
  bool is_boundary(char32_t c) const {
    if (c < 0x80) {
      return true;
    }
    std::array<utf8proc_int32_t, 32> parts{};
    int last_class = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
        static_cast<utf8proc_option_t>((options_ & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE),
        &last_class);
    const utf8proc_int32_t first = count > 0 ? parts[0] : static_cast<utf8proc_int32_t>(c);
    if (utf8proc_get_property(first)->combining_class != 0) {
      return false;
    }
    const bool hangul =
        (first >= 0x1161 && first <= 0x1175) || (first >= 0x11A8 && first <= 0x11C2);
    return !hangul && !(static_cast<std::size_t>(first) < composed_limit &&
                        composition_seconds()[static_cast<std::size_t>(first)]);
  }

  void normalize(std::string_view view, std::size_t begin, std::size_t end,
                 std::vector<utf8proc_int32_t>& space, Rewriter& out) const {
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(view.data() + begin);
    const auto size = static_cast<utf8proc_ssize_t>(end - begin);
    const auto options = static_cast<utf8proc_option_t>(
        (options_ & UTF8PROC_COMPOSE) != 0 ? options_ : options_ | UTF8PROC_DECOMPOSE);
    utf8proc_ssize_t count = utf8proc_decompose(
        bytes, size, space.data(), static_cast<utf8proc_ssize_t>(space.size()), options);
    if (count > static_cast<utf8proc_ssize_t>(space.size())) {
      space.resize(static_cast<std::size_t>(count));
      count = utf8proc_decompose(bytes, size, space.data(), count, options);
    }
    count = utf8proc_normalize_utf32(space.data(), count, options);
    std::string normal;
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      append_utf8(normal, static_cast<char32_t>(space[static_cast<std::size_t>(i)]));
    }
    if (normal == view.substr(begin, end - begin)) {
      out.keep(begin, end);
    } else {
      out.put(normal, begin, end);
    }
  }

  int options_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(Text& text) const override {
    each_character(text, [](char32_t c, std::size_t begin, std::size_t end, Rewriter& out) {
      char32_t space[2] = {};
      const std::u32string_view lower = lower_case(c, space);
      if (lower.size() == 1 && lower[0] == c) {
        out.keep(begin, end);
        return;
      }
      for (const char32_t one : lower) {
        out.put(one, begin, end);
      }
    });
  }
};

/// Drops the characters for which a function is true.
class Drop final : public Normalizer {
 public:
  explicit Drop(bool (*dropped)(char32_t)) : dropped_(dropped) {}
  void apply(Text& text) const override {
    each_character(text, [&](char32_t c, std::size_t begin, std::size_t end, Rewriter& out) {
      if (!dropped_(c)) {
        out.keep(begin, end);
      }
    });
  }

 private:
  bool (*dropped_)(char32_t);
};

/// Writes a space for the characters for which a function is true.
class BlankToSpace final : public Normalizer {
 public:
  explicit BlankToSpace(bool (*blank)(char32_t)) : blank_(blank) {}
  void apply(Text& text) const override {
    each_character(text, [&](char32_t c, std::size_t begin, std::size_t end, Rewriter& out) {
      if (blank_(c)) {
        out.put(std::string_view(" "), begin, end);
      } else {
        out.keep(begin, end);
      }
    });
  }

 private:
  bool (*blank_)(char32_t);
};

// Characters that "Nmt" drops and blanks.
bool nmt_dropped(char32_t c) {
  return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F ||
         c == 0x9F;
}
bool nmt_blank(char32_t c) {
  return c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
         c == 0xFFFD;
}

bool bert_dropped(char32_t c) {
  return c == 0 || c == 0xFFFD || (c != '\t' && c != '\n' && c != '\r' && is_other(c));
}

/// Ideographs, as BERT's tokenizer lists them (its range from U+2B920 too).
bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class SpacedIdeographs final : public Normalizer {
 public:
  void apply(Text& text) const override {
    each_character(text, [](char32_t c, std::size_t begin, std::size_t end, Rewriter& out) {
      if (!is_ideograph(c)) {
        out.keep(begin, end);
        return;
      }
      out.put(std::string_view(" "), begin, begin);
      out.keep(begin, end);
      out.put(std::string_view(" "), end, end);
    });
  }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(Text& text) const override {
    const std::string_view view = text.view();
    std::size_t begin = 0;
    std::size_t end = view.size();
    while (left_ && begin < end && is_white_space(character_at(view, begin).code)) {
      begin += character_at(view, begin).bytes;
    }
    while (right_ && begin < end) {
      const std::size_t before = character_before(view, end);
      if (!is_white_space(character_at(view, before).code)) {
        break;
      }
      end = before;
    }
    Rewriter out(text);
    out.keep(begin, end);
    out.finish();
  }

 private:
  bool left_, right_;
};

class Replace final : public Normalizer {
 public:
  Replace(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(Text& text) const override {
    std::vector<Match> parts;
    pattern_.find_all(text.view(), 0, *text.allowance, parts);
    Rewriter out(text);
    for (const Match& part : parts) {
      if (part.matches) {
        out.put(content_, part.begin, part.end);
      } else {
        out.keep(part.begin, part.end);
      }
    }
    out.finish();
  }

 private:
  Regex pattern_;
  std::string content_;
};

/// Replaces a text, which most files do with a space.
class ReplaceText final : public Normalizer {
 public:
  ReplaceText(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  void apply(Text& text) const override {
    const std::string_view view = text.view();
    Rewriter out(text);
    for (std::size_t at = 0; at < view.size();) {
      const std::size_t next = std::min(find_bytes(view, from_, at), view.size());
      out.keep(at, next);
      at = next;
      if (next < view.size()) {
        at += from_.size();
        out.put(to_, next, at);
      }
    }
    out.finish();
  }

 private:
  std::string from_, to_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  void apply(Text& text) const override {
    if (text.view().empty()) {
      return;
    }
    Rewriter out(text);
    out.put(text_, 0, 0);
    out.keep(0, text.view().size());
    out.finish();
  }

 private:
  std::string text_;
};

class ByteLevelForm final : public Normalizer {
 public:
  void apply(Text& text) const override {
    const std::string_view view = text.view();
    Rewriter out(text);
    for (std::size_t at = 0; at < view.size(); ++at) {
      out.put(byte_level_text(static_cast<unsigned char>(view[at])), at, at + 1);
    }
    out.finish();
  }
};

/// A table of SentencePiece: a trie as a double array (the library Darts) from texts to places in a
/// block of replacements. As Hugging Face applies it: to graphemes of less than 6 bytes, else to
/// characters, and the shortest entry that begins them replaces all of it.
class PrecompiledMap final : public Normalizer {
 public:
  PrecompiledMap(const std::string& bytes, const std::string& where) {
    std::uint32_t size = 0;
    if (bytes.size() >= 4) {
      std::memcpy(&size, bytes.data(), 4);
    }
    if (bytes.size() < 4 || size % 4 != 0 || size < 4 || size > bytes.size() - 4) {
      fail_input(
          {.thing = where, .wrong = "its size does not fit the table in it; the file is damaged"});
    }
    units_.resize(size / 4);
    std::memcpy(units_.data(), bytes.data() + 4, size);
    texts_ = bytes.substr(4 + size);
    texts_ += '\0';
    if (valid_bytes(texts_) != texts_.size()) {
      fail_input({.thing = where, .wrong = "its texts are not UTF-8; the file is damaged"});
    }
  }

  void apply(Text& text) const override {
    const std::string_view view = text.view();
    Rewriter out(text);
    for (std::size_t begin = 0; begin < view.size();) {
      // One grapheme.
      Character last = character_at(view, begin);
      std::size_t end = begin + last.bytes;
      utf8proc_int32_t state = 0;
      while (end < view.size()) {
        const Character next = character_at(view, end);
        if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                             static_cast<utf8proc_int32_t>(next.code), &state)) {
          break;
        }
        end += next.bytes;
        last = next;
      }
      std::string_view replaced;
      if (end - begin < 6 && find(view.substr(begin, end - begin), replaced)) {
        out.put(replaced, begin, end);
        begin = end;
        continue;
      }
      while (begin < end) {
        const std::size_t next = begin + character_at(view, begin).bytes;
        if (find(view.substr(begin, next - begin), replaced)) {
          out.put(replaced, begin, next);
        } else {
          out.keep(begin, next);
        }
        begin = next;
      }
    }
    out.finish();
  }

 private:
  static std::uint32_t offset_of(std::uint32_t unit) {
    return (unit >> 10) << ((unit & (1U << 9)) >> 6);
  }
  /// The replacement of the shortest entry that begins `key`.
  bool find(std::string_view key, std::string_view& replaced) const {
    std::uint32_t at = offset_of(units_[0]);
    for (const char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) {
        return false;
      }
      at ^= byte;
      if (at >= units_.size() || (units_[at] & 0x800000FFU) != byte) {
        return false;
      }
      const std::uint32_t unit = units_[at];
      at ^= offset_of(unit);
      if ((unit & 0x100U) != 0 && at < units_.size()) {
        const std::uint32_t place = units_[at] & 0x7FFFFFFFU;
        if (place >= texts_.size()) {
          return false;
        }
        replaced = std::string_view(texts_).substr(place);
        replaced = replaced.substr(0, replaced.find('\0'));
        return true;
      }
    }
    return false;
  }

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

using List = std::vector<std::unique_ptr<Normalizer>>;

void read(const Json& json, const std::string& where, List& out);

void read_bert(Fields& fields, List& out) {
  if (fields.flag("clean_text", true)) {
    out.push_back(std::make_unique<Drop>(bert_dropped));
    out.push_back(std::make_unique<BlankToSpace>(is_white_space));
  }
  if (fields.flag("handle_chinese_chars", true)) {
    out.push_back(std::make_unique<SpacedIdeographs>());
  }
  const bool lower = fields.flag("lowercase", true);
  if (fields.flag("strip_accents", lower)) {
    out.push_back(std::make_unique<UnicodeForm>(0));
    out.push_back(std::make_unique<Drop>(is_nonspacing_mark));
  }
  if (lower) {
    out.push_back(std::make_unique<Lowercase>());
  }
}

void read_replace(Fields& fields, List& out) {
  Fields pattern(fields.object("pattern"), fields.path("pattern"));
  std::string content = fields.text("content");
  if (pattern.has("Regex")) {
    out.push_back(std::make_unique<Replace>(
        Regex(pattern.text("Regex"), Dialect::ruby, pattern.path("Regex")), std::move(content)));
  } else if (std::string from = pattern.text("String"); !from.empty()) {
    out.push_back(std::make_unique<ReplaceText>(std::move(from), std::move(content)));
  }
  pattern.finish();
}

void read_sequence(Fields& fields, List& out) {
  const Json& list = fields.list("normalizers");
  for (std::size_t i = 0; i < list.size(); ++i) {
    read(list[i], fmt::format("{}.normalizers[{}]", fields.where(), i), out);
  }
}

void read(const Json& json, const std::string& where, List& out) {
  Fields fields(json, where);
  const std::string type = fields.choice(
      "type", {"Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip",
               "Replace", "Prepend", "Precompiled", "BertNormalizer", "ByteLevel", "Nmt"});
  if (type == "Sequence") {
    read_sequence(fields, out);
  } else if (type == "NFC") {
    out.push_back(std::make_unique<UnicodeForm>(UTF8PROC_COMPOSE));
  } else if (type == "NFD") {
    out.push_back(std::make_unique<UnicodeForm>(0));
  } else if (type == "NFKC") {
    out.push_back(std::make_unique<UnicodeForm>(UTF8PROC_COMPOSE | UTF8PROC_COMPAT));
  } else if (type == "NFKD") {
    out.push_back(std::make_unique<UnicodeForm>(UTF8PROC_COMPAT));
  } else if (type == "Lowercase") {
    out.push_back(std::make_unique<Lowercase>());
  } else if (type == "StripAccents") {
    out.push_back(std::make_unique<Drop>(is_mark));
  } else if (type == "Strip") {
    const bool left = fields.flag("strip_left", true);
    out.push_back(std::make_unique<Strip>(left, fields.flag("strip_right", true)));
  } else if (type == "Replace") {
    read_replace(fields, out);
  } else if (type == "Prepend") {
    out.push_back(std::make_unique<Prepend>(fields.text("prepend")));
  } else if (type == "Precompiled") {
    const std::string map = fields.text("precompiled_charsmap", "");
    if (!map.empty()) {
      const std::string place = fields.path("precompiled_charsmap");
      out.push_back(std::make_unique<PrecompiledMap>(bytes_in_base64(map, place), place));
    }
  } else if (type == "BertNormalizer") {
    read_bert(fields, out);
  } else if (type == "ByteLevel") {
    out.push_back(std::make_unique<ByteLevelForm>());
  } else {
    out.push_back(std::make_unique<Drop>(nmt_dropped));
    out.push_back(std::make_unique<BlankToSpace>(nmt_blank));
  }
  fields.finish();
  if (out.size() > most_steps) {
    fail_input(
        {.thing = where,
         .wrong = fmt::format("there are too many steps (expected at most {})", most_steps)});
  }
  for (std::unique_ptr<Normalizer>& step : out) {
    step->where = step->where.empty() ? where : step->where;
  }
}

}  // namespace

List read_normalizers(const Json& json, const std::string& where) {
  List out;
  if (!json.is_null()) {
    read(json, where, out);
  }
  return out;
}

}  // namespace tessera::tokenize
