#include "jinja/tokens.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>
#include <system_error>
#include <tessera/shown.hpp>
#include <tessera/utf8.hpp>
#include <utility>

#include "text_checks.hpp"

import tessera.base;

namespace tessera::data::jinja {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Beyond every real template: what is made of it takes up to 200 times as much memory.
constexpr std::size_t longest_template = std::size_t{1} << 20;

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& name, TemplateForm form)
      : verbatim_(form == TemplateForm::verbatim), place_{name} {
    if (text.size() > longest_template) {
      place_.refuse(fmt::format("the template is too long (expected at most {} bytes, got {})",
                                longest_template, text.size()));
    }
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
    if (text_.ends_with('\n') && !verbatim_) {
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
    } else if (!ends && sign != '+' && mark != '{' && !verbatim_) {
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
    } else if (sign != '+' && trims && !verbatim_ && end < text_.size() && text_[end] == '\n') {
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
    const TemplateLine opened = place_;
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

  /// Digits of `base`, with single underscores between them. Where they end.
  std::size_t digits_end(std::size_t at, int base) const {
    const auto fits = [&](std::size_t i) {
      const auto c = static_cast<unsigned char>(i < text_.size() ? text_[i] : '\0');
      return base == 16 ? std::isxdigit(c) != 0 : c >= '0' && c < '0' + base;
    };
    while (fits(at) || (at < text_.size() && text_[at] == '_' && fits(at + 1))) {
      ++at;
    }
    return at;
  }

  void number() {
    const char letter = at_ + 1 < text_.size() && text_[at_] == '0'
                            ? static_cast<char>(std::tolower(text_[at_ + 1]))
                            : '\0';
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    bool whole = true;
    std::size_t end = digits_end(base == 10 ? at_ : at_ + 2, base);
    if (base == 10 && end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      whole = false;
      end = digits_end(end + 1, 10);
    }
    if (base == 10 && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      std::size_t digits = end + 1;
      digits += digits < text_.size() && (text_[digits] == '-' || text_[digits] == '+') ? 1 : 0;
      if (digits < text_.size() && is_digit(text_[digits])) {
        whole = false;
        end = digits_end(digits, 10);
      }
    }
    std::string digits = text_.substr(at_, end - at_);
    std::erase(digits, '_');
    const bool leads = whole && base == 10 && digits.size() > 1 && digits[0] == '0' &&
                       digits.find_first_not_of('0') != std::string::npos;
    std::optional<Value> value;
    if (whole && base == 10 && !leads) {
      value = Value::whole_number(digits);
    } else if (!leads) {
      value = read_number(digits, base);
    }
    if (!value || (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end])))) {
      place_.refuse(fmt::format("the number {} is not supported", shown(digits, 40)));
    }
    add(TokenKind::number).literal = *value;
    advance(end - at_);
  }

  /// A number with a fraction or an exponent, or a whole one of another base than 10.
  static std::optional<Value> read_number(const std::string& digits, int base) {
    const char* const last = digits.data() + digits.size();
    if (base == 10) {
      double real = 0;
      const bool good = std::from_chars(digits.data(), last, real).ec == std::errc();
      return good ? std::optional(Value(real)) : std::nullopt;
    }
    std::int64_t integer = 0;
    const bool good = std::from_chars(digits.data() + 2, last, integer, base).ec == std::errc();
    return good ? std::optional(Value(integer)) : std::nullopt;
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
    add(TokenKind::text).literal = Value::constant(std::move(out));
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
      if (is_digit(c) || c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
        place_.refuse("this escape in a text is not supported");
      }
      out += '\\';
      ++at;
      return;
    }
    std::uint32_t value = 0;
    const char* const first = text_.data() + at + 2;
    const char* const last = text_.data() + std::min(text_.size(), at + 2 + digits);
    const auto [end, error] = std::from_chars(first, last, value, 16);
    if (error != std::errc() || end != first + digits || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000)) {
      place_.refuse("an escape in a text is not a character");
    }
    append_utf8(out, value);
    at += 2 + digits;
  }

  /// The whole character at the place.
  std::string character() const {
    std::size_t bytes = 1;
    while (at_ + bytes < text_.size() && is_continuation(text_[at_ + bytes])) {
      ++bytes;
    }
    return text_.substr(at_, bytes);
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
      place_.refuse(fmt::format("the character '{}' has no place here", shown(character())));
    }
    add(TokenKind::sign, std::string(1, text_[at_]));
    advance(1);
  }

  std::string text_;
  bool verbatim_;
  TemplateLine place_;
  std::size_t at_ = 0;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string one_line(std::string_view text) {
  constexpr std::size_t most = 1000;
  std::string out;
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto rest = static_cast<utf8proc_ssize_t>(text.size());
  while (rest > 0 && out.size() < most) {
    utf8proc_int32_t c = 0;
    const utf8proc_ssize_t used = utf8proc_iterate(at, rest, &c);
    const bool valid = used > 0;
    const auto category = valid ? utf8proc_category(c) : UTF8PROC_CATEGORY_CN;
    if (valid && (c == '\n' || c == '\t')) {
      out += c == '\n' ? "\\n" : "\\t";
    } else if (!valid || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_ZL ||
               category == UTF8PROC_CATEGORY_ZP) {
      out += '?';
    } else {
      append_utf8(out, static_cast<std::uint32_t>(c));
    }
    at += valid ? used : 1;
    rest -= valid ? used : 1;
  }
  return rest > 0 ? out + "..." : out;
}

void TemplateLine::refuse(const std::string& wrong, const std::string& advice) const {
  fail_input({.thing = fmt::format("{}: line {}", name, line),
              .wrong = one_line(wrong),
              .advice = advice});
}

std::vector<Token> tokens_of(std::string_view text, const std::string& name, TemplateForm form) {
  if (const std::size_t at = invalid_utf8(text); at != std::string_view::npos) {
    fail_input({.thing = name, .wrong = fmt::format("byte {} is not UTF-8", at)});
  }
  return Lexer(text, name, form).all();
}

}  // namespace tessera::data::jinja
