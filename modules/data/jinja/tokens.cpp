#include "jinja/tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>

import tessera.base;

namespace tessera::data::jinja {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

void add_utf8(std::uint32_t c, std::string& out) {
  const auto add = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6);
    add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3F));
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  }
}

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& name) : place_{name} {
    // Jinja's own steps: ends of lines become \n, and one at the end is dropped.
    text_.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r') {
        i += i + 1 < text.size() && text[i + 1] == '\n' ? 1 : 0;
        text_ += '\n';
      } else {
        text_ += text[i];
      }
    }
    if (text_.ends_with('\n')) {
      text_.pop_back();
    }
  }

  std::vector<Token> all() {
    while (at_ < text_.size()) {
      data();
    }
    add(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  bool follows(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }

  Token& add(TokenKind kind, std::string text = {}) {
    tokens_.push_back({kind, place_.line, std::move(text)});
    return tokens_.back();
  }

  void advance(std::size_t bytes) {
    const auto from = text_.begin() + static_cast<std::ptrdiff_t>(at_);
    place_.line +=
        static_cast<int>(std::count(from, from + static_cast<std::ptrdiff_t>(bytes), '\n'));
    at_ += bytes;
  }

  /// Text up to the next tag, and the tag.
  void data() {
    std::size_t tag = at_;
    while ((tag = text_.find('{', tag)) != std::string::npos &&
           (tag + 1 == text_.size() ||
            std::string_view("{%#").find(text_[tag + 1]) == std::string_view::npos)) {
      ++tag;
    }
    if (tag == std::string::npos) {
      tag = text_.size();
    }
    std::string before = text_.substr(at_, tag - at_);
    const bool ends = tag == text_.size();
    const char mark = ends ? '\0' : text_[tag + 1];
    const char sign = ends || tag + 2 >= text_.size() ? '\0' : text_[tag + 2];
    if (sign == '-') {
      before = std::string(stripped(before, nullptr, false, true));
    } else if (!ends && sign != '+' && mark != '{') {
      strip_line(before);
    }
    if (!before.empty()) {
      add(TokenKind::data, std::move(before));
    }
    advance(tag - at_);
    if (ends) {
      return;
    }
    advance(2 + (sign == '-' || (sign == '+' && mark != '{') ? 1 : 0));
    if (mark == '#') {
      comment();
    } else if (mark == '{') {
      tag_tokens(TokenKind::begin_output, TokenKind::end_output, '}');
    } else {
      tag_tokens(TokenKind::begin_block, TokenKind::end_block, '%');
      raw();
    }
  }

  /// Drops the blanks of a line in which nothing else is before a tag.
  void strip_line(std::string& before) const {
    const std::size_t newline = before.rfind('\n');
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    if ((newline != std::string::npos || line_starts_) &&
        stripped(std::string_view(before).substr(begin), nullptr, true, false).empty()) {
      before.resize(begin);
    }
  }

  /// What follows on the end of a tag: white space after -, or one end of line after a block.
  void after_tag(char sign, bool trims) {
    std::size_t end = at_;
    if (sign == '-') {
      const std::string_view rest = std::string_view(text_).substr(at_);
      end = text_.size() - stripped(rest, nullptr, true, false).size();
    } else if (sign != '+' && trims && end < text_.size() && text_[end] == '\n') {
      ++end;
    }
    line_starts_ = end > at_ && text_[end - 1] == '\n';
    advance(end - at_);
  }

  void comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) {
      place_.refuse("a comment {# does not end");
    }
    const char sign = end > at_ ? text_[end - 1] : '\0';
    advance(end + 2 - at_);
    after_tag(sign, true);
  }

  /// {% raw %}: everything up to {% endraw %} is text.
  void raw() {
    const std::size_t count = tokens_.size();
    if (count < 3 || tokens_[count - 3].kind != TokenKind::begin_block ||
        tokens_[count - 2].kind != TokenKind::name || tokens_[count - 2].text != "raw") {
      return;
    }
    place_.refuse("the tag {% raw %} is not supported");
  }

  void tag_tokens(TokenKind begin, TokenKind end, char mark) {
    add(begin);
    const Place opened = place_;
    int braces = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool closes = braces == 0;
      for (const std::string_view sign : {"-", "+", ""}) {
        const std::string ending = std::string(sign) + mark + "}";
        if (closes && follows(ending) && (mark == '%' || sign != "+")) {
          advance(ending.size());
          add(end);
          after_tag(sign.empty() ? '\0' : sign[0], mark == '%');
          return;
        }
      }
      if (is_space(static_cast<unsigned char>(c))) {
        advance(1);
      } else if (is_letter(c)) {
        name();
      } else if (is_digit(c)) {
        number();
      } else if (c == '"' || c == '\'') {
        literal(c);
      } else {
        braces += c == '{' || c == '(' || c == '[' ? 1 : c == '}' || c == ')' || c == ']' ? -1 : 0;
        sign();
      }
    }
    opened.refuse(fmt::format("a tag {{{} does not end", mark == '%' ? '%' : '{'));
  }

  void name() {
    std::size_t end = at_;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) {
      ++end;
    }
    add(TokenKind::name, text_.substr(at_, end - at_));
    advance(end - at_);
  }

  void number() {
    std::size_t end = at_;
    bool whole = true;
    while (end < text_.size() && is_digit(text_[end])) {
      ++end;
    }
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      whole = false;
      ++end;
      while (end < text_.size() && is_digit(text_[end])) {
        ++end;
      }
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      std::size_t digits = end + 1;
      digits += digits < text_.size() && (text_[digits] == '-' || text_[digits] == '+') ? 1 : 0;
      if (digits < text_.size() && is_digit(text_[digits])) {
        whole = false;
        end = digits;
        while (end < text_.size() && is_digit(text_[end])) {
          ++end;
        }
      }
    }
    const std::string digits = text_.substr(at_, end - at_);
    std::int64_t integer = 0;
    double real = 0;
    const char* const first = digits.data();
    const char* const last = first + digits.size();
    const bool good = whole ? std::from_chars(first, last, integer).ec == std::errc()
                            : std::from_chars(first, last, real).ec == std::errc();
    if (!good || (end < text_.size() && is_letter(text_[end]))) {
      place_.refuse(fmt::format("the number {} is not supported", shown(digits)));
    }
    add(TokenKind::number).literal = whole ? Value(integer) : Value(real);
    advance(end - at_);
  }

  void literal(char quote) {
    std::size_t end = at_ + 1;
    std::string out;
    while (end < text_.size() && text_[end] != quote) {
      if (text_[end] == '\\') {
        escape(end, out);
      } else {
        out += text_[end++];
      }
    }
    if (end >= text_.size()) {
      place_.refuse("a text in quotes does not end");
    }
    add(TokenKind::text).literal = Value(std::move(out));
    advance(end + 1 - at_);
  }

  /// Python's unicode_escape. `at` is at the backslash and moves behind the escape.
  void escape(std::size_t& at, std::string& out) const {
    const char c = at + 1 < text_.size() ? text_[at + 1] : '\0';
    constexpr std::string_view names = "ntr\\'\"abfv\n";
    constexpr std::string_view meanings = "\n\t\r\\'\"\a\b\f\v";
    if (const std::size_t which = names.find(c); c != '\0' && which != std::string_view::npos) {
      if (c != '\n') {
        out += meanings[which];
      }
      at += 2;
      return;
    }
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      out += '\\';
      ++at;
      return;
    }
    std::uint32_t value = 0;
    const char* const first = text_.data() + at + 2;
    const char* const last = text_.data() + std::min(text_.size(), at + 2 + digits);
    const auto [end, error] = std::from_chars(first, last, value, 16);
    if (error != std::errc() || end != first + digits || value > 0x10FFFF) {
      place_.refuse("an escape in a text is not complete");
    }
    add_utf8(value, out);
    at += 2 + digits;
  }

  void sign() {
    constexpr std::array<std::string_view, 6> pairs = {"==", "!=", "<=", ">=", "//", "**"};
    constexpr std::string_view single = "+-*/%~<>=()[]{}.,:|";
    for (const std::string_view pair : pairs) {
      if (follows(pair)) {
        add(TokenKind::sign, std::string(pair));
        advance(2);
        return;
      }
    }
    if (single.find(text_[at_]) == std::string_view::npos) {
      place_.refuse(
          fmt::format("the character '{}' has no place here", shown(std::string(1, text_[at_]))));
    }
    add(TokenKind::sign, std::string(1, text_[at_]));
    advance(1);
  }

  std::string text_;
  Place place_;
  std::size_t at_ = 0;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

void Place::refuse(const std::string& wrong) const {
  fail_input({.thing = fmt::format("{}: line {}", name, line), .wrong = wrong});
}

std::vector<Token> tokens_of(std::string_view text, const std::string& name) {
  return Lexer(text, name).all();
}

}  // namespace tessera::data::jinja
