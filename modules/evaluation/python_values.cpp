module;
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/utf8.hpp>
#include <utility>
module tessera.evaluation;

import :python_values;
import tessera.base;

namespace tessera::evaluation {
namespace {

using Json = nlohmann::json;

/// Reads one value; `failed()` where the text is another one.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  std::optional<Json> whole() {
    Json value = read(0);
    blanks();
    return failed_ || at_ != text_.size() ? std::nullopt : std::optional(std::move(value));
  }

 private:
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  bool take(char c) {
    blanks();
    const bool there = at_ < text_.size() && text_[at_] == c;
    at_ += there ? 1 : 0;
    return there;
  }

  Json fail() {
    failed_ = true;
    return nullptr;
  }

  Json read(int level) {
    constexpr int most_levels = 64;
    blanks();
    if (failed_ || at_ == text_.size() || level > most_levels) {
      return fail();
    }
    const char c = text_[at_];
    if (c == '\'' || c == '"') {
      return text();
    }
    if (c == '[' || c == '(') {
      ++at_;
      return list(c == '[' ? ']' : ')', level);
    }
    if (c == '{') {
      ++at_;
      return object(level);
    }
    for (const auto& [word, value] :
         {std::pair{"True", Json(true)}, {"False", Json(false)}, {"None", Json(nullptr)}}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += std::string_view(word).size();
        return value;
      }
    }
    return number();
  }

  Json list(char end, int level) {
    Json values = Json::array();
    while (!failed_ && !take(end)) {
      values.push_back(read(level + 1));
      if (!take(',') && (blanks(), at_ == text_.size() || text_[at_] != end)) {
        return fail();
      }
    }
    return values;
  }

  Json object(int level) {
    Json values = Json::object();
    while (!failed_ && !take('}')) {
      const Json key = read(level + 1);
      if (!key.is_string() || !take(':')) {
        return fail();
      }
      values[key.get<std::string>()] = read(level + 1);
      if (!take(',') && (blanks(), at_ == text_.size() || text_[at_] != '}')) {
        return fail();
      }
    }
    return values;
  }

  Json number() {
    const std::size_t end =
        std::min(text_.find_first_not_of("+-.0123456789eE_", at_), text_.size());
    const std::string_view digits = text_.substr(at_, end - at_);
    at_ = end;
    std::int64_t count = 0;
    double value = 0;
    const char* const last = digits.data() + digits.size();
    if (!digits.empty() && std::from_chars(digits.data(), last, count).ptr == last) {
      return count;
    }
    if (!digits.empty() && std::from_chars(digits.data(), last, value).ptr == last) {
      return value;
    }
    return fail();
  }

  Json text() {
    const char quote = text_[at_++];
    std::string value;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\') {
        ++at_;
        escape(value);
      } else {
        value += text_[at_++];
      }
    }
    if (at_ == text_.size()) {
      return fail();
    }
    ++at_;
    return value;
  }

  void escape(std::string& value) {
    constexpr std::string_view names = "\\'\"nrtab0fv";
    constexpr std::string_view bytes{"\\'\"\n\r\t\a\b\0\f\v", 11};
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      std::uint32_t code = 0;
      const std::string_view hex = text_.substr(std::min(at_, text_.size()), digits);
      const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
      failed_ |= hex.size() < digits || error != std::errc() || end != hex.data() + hex.size() ||
                 code > 0x10FFFF;
      at_ += hex.size();
      append_utf8(value, failed_ ? '?' : code);
    } else if (const std::size_t at = names.find(c); at != std::string_view::npos) {
      value += bytes[at];
    } else {
      value += '\\';
      value += c;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

/// How many bytes of white space a text begins with.
std::size_t space_bytes(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  const auto c = static_cast<unsigned char>(text[0]);
  if (c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31)) {
    return 1;
  }
  for (const std::string_view wide :
       {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF",
        "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    if (text.starts_with(wide)) {
      return wide.size();
    }
  }
  const bool em = text.starts_with("\xE2\x80") && text.size() > 2 &&
                  static_cast<unsigned char>(text[2]) >= 0x80 &&
                  static_cast<unsigned char>(text[2]) <= 0x8A;
  return em ? 3 : 0;
}

}  // namespace

std::optional<Json> python_literal(std::string_view text) { return LiteralReader(text).whole(); }

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string_view without_space_before(std::string_view text) {
  while (const std::size_t bytes = space_bytes(text)) {
    text.remove_prefix(bytes);
  }
  return text;
}

std::string_view without_space_behind(std::string_view text) {
  while (!text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && is_continuation(text[begin])) {
      --begin;
    }
    if (space_bytes(text.substr(begin)) != text.size() - begin) {
      break;
    }
    text = text.substr(0, begin);
  }
  return text;
}

std::string_view without_space(std::string_view text) {
  return without_space_behind(without_space_before(text));
}

}  // namespace tessera::evaluation
