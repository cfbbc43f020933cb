module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>
module tessera.grammar;

import :text_pattern;
import tessera.base;

namespace tessera::grammar {
namespace {

constexpr std::int64_t most_times = 10'000;
constexpr int deepest_groups = 60;

using Ranges = std::vector<CharacterRange>;

constexpr CharacterRange ascii = {0, 0x7F};

Ranges common(const Ranges& all, const CharacterRange& with) {
  Ranges both;
  for (const auto& [first, last] : all) {
    if (first <= with.last && last >= with.first) {
      both.push_back({std::max(first, with.first), std::min(last, with.last)});
    }
  }
  return both;
}

Ranges digits() { return {{'0', '9'}}; }
Ranges word() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
Ranges blanks() { return {{'\t', '\r'}, {' ', ' '}}; }

class PatternParser {
 public:
  PatternParser(std::string_view text, const std::string& name) : reader_(text, name) {}

  Expression parse() {
    std::vector<Expression> all;
    do {
      all.push_back(whole_alternative());
    } while (reader_.take_if('|'));
    if (!reader_.at_end()) {
      reader_.refuse("the pattern has a bracket too many");
    }
    return choice(std::move(all));
  }

 private:
  static Expression anything() { return repeat(json_characters({{0, last_character}}), 0); }

  /// A pattern matches anywhere in a text, unless it says otherwise.
  Expression whole_alternative() {
    std::vector<Expression> parts;
    if (!reader_.take_if('^')) {
      parts.push_back(anything());
    }
    parts.push_back(alternative(0));
    if (!reader_.take_if('$')) {
      parts.push_back(anything());
    } else if (!reader_.at_end() && reader_.peek() != '|') {
      reader_.refuse("the pattern has $ elsewhere than at its end");
    }
    return sequence(std::move(parts));
  }

  Expression alternative(int depth) {
    std::vector<Expression> parts;
    while (!reader_.at_end() && reader_.peek() != '|' && reader_.peek() != ')' &&
           reader_.peek() != '$') {
      Expression one = repeated(reader_, part(depth));
      reader_.take_if('?');  // the shortest match is one of the same texts
      parts.push_back(std::move(one));
    }
    return sequence(std::move(parts));
  }

  Expression part(int depth) {
    const char32_t c = reader_.take();
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return json_characters(set());
      case '.':
        return json_characters(all_but({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '\\':
        return json_characters(escape());
      case '*':
      case '+':
      case '?':
      case '{':
      case '^':
        reader_.refuse(fmt::format("the pattern has '{}' at a place that is not supported",
                                   static_cast<char>(c)));
      default:
        return json_characters({{c, c}});
    }
  }

  Expression group(int depth) {
    if (depth >= deepest_groups) {
      reader_.refuse("the pattern has too many groups within each other");
    }
    if (reader_.take_if('?') && !reader_.take_if(':')) {
      reader_.refuse("the pattern has a group of a kind that is not supported");
    }
    std::vector<Expression> all;
    do {
      all.push_back(alternative(depth + 1));
    } while (reader_.take_if('|'));
    if (!reader_.take_if(')')) {
      reader_.refuse("the pattern has a group that is not closed, or $ within it");
    }
    return choice(std::move(all));
  }

  /// After a backslash. What a class leaves out is limited to ASCII, for which all readers of
  /// patterns agree what digits, words and blanks are.
  Ranges escape() {
    const char32_t c = reader_.take();
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return common(all_but(digits()), ascii);
      case 'w':
        return word();
      case 'W':
        return common(all_but(word()), ascii);
      case 's':
        return blanks();
      case 'S':
        return common(all_but(blanks()), {0x21, 0x7E});
      default:
        return {{single(c), single_}};
    }
  }

  /// A character that an escape stands for; it stays in `single_`.
  char32_t single(char32_t c) {
    const bool is_letter =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    single_ = c == 'n'   ? '\n'
              : c == 'r' ? '\r'
              : c == 't' ? '\t'
              : c == 'f' ? '\f'
              : c == 'v' ? '\v'
              : c == 'x' ? reader_.take_hex(2)
              : c == 'u' ? reader_.take_hex(4)
                         : c;
    if (single_ == c && (is_letter || c == 0)) {
      reader_.refuse("the pattern has an escape that is not supported");
    }
    return single_;
  }

  Ranges set() {
    const bool excludes = reader_.take_if('^');
    Ranges ranges;
    bool has_class = false;
    while (!reader_.take_if(']')) {
      if (reader_.at_end()) {
        reader_.refuse("the pattern has a set that is not closed");
      }
      const char32_t c = reader_.take();
      Ranges one = c == '\\' ? escape() : Ranges{{c, c}};
      const bool is_class = one.size() != 1 || one[0].first != one[0].last;
      has_class = has_class || is_class;
      if (reader_.peek() == '-' && reader_.peek(1) != ']') {
        reader_.take();
        const char32_t last = reader_.take();
        one[0].last = last == '\\' ? single(reader_.take()) : last;
        if (is_class || one[0].last < one[0].first) {
          reader_.refuse("the pattern has a range without a beginning or an end");
        }
      }
      ranges.insert(ranges.end(), one.begin(), one.end());
    }
    if (!excludes) {
      return ranges;
    }
    return has_class ? common(all_but(std::move(ranges)), ascii) : all_but(std::move(ranges));
  }

  CharacterReader reader_;
  char32_t single_ = 0;
};

}  // namespace

CharacterReader::CharacterReader(std::string_view text, std::string name) : name_(std::move(name)) {
  for (std::size_t i = 0; i < text.size();) {
    const Character next = first_character(text.substr(i));
    if (next.bytes == 0) {
      fail_input({.thing = name_, .wrong = "it is not UTF-8"});
    }
    characters_.push_back(next.code);
    i += next.bytes;
  }
}

bool CharacterReader::take_if(char32_t character) {
  if (at_end() || peek() != character) {
    return false;
  }
  ++next_;
  return true;
}

char32_t CharacterReader::take_hex(int digits_of) {
  char32_t value = 0;
  for (int i = 0; i < digits_of; ++i) {
    const char32_t c = take();
    const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (!letter && !(c >= '0' && c <= '9')) {
      refuse("a hexadecimal digit is missing");
    }
    value = value << 4U | (letter ? (c & 0xFU) + 9 : c - '0');
  }
  if (value > last_character || (value >= 0xD800 && value < 0xE000)) {
    refuse("there is no such character");
  }
  return value;
}

std::optional<std::int64_t> CharacterReader::take_number() {
  std::optional<std::int64_t> value;
  while (peek() >= '0' && peek() <= '9') {
    value = std::min<std::int64_t>(value.value_or(0) * 10 + static_cast<std::int64_t>(take() - '0'),
                                   std::int64_t{1} << 40);
  }
  return value;
}

std::size_t CharacterReader::line() const {
  return 1 +
         static_cast<std::size_t>(std::count(
             characters_.begin(), characters_.begin() + static_cast<std::ptrdiff_t>(next_), U'\n'));
}

void CharacterReader::refuse(const std::string& wrong) const {
  fail_input({.thing = fmt::format("{}, line {}", name_, line()), .wrong = wrong});
}

Expression repeated(CharacterReader& reader, Expression part) {
  if (reader.take_if('*')) {
    return repeat(std::move(part), 0);
  }
  if (reader.take_if('+')) {
    return repeat(std::move(part), 1);
  }
  if (reader.take_if('?')) {
    return optional(std::move(part));
  }
  if (!reader.take_if('{')) {
    return part;
  }
  const auto least = reader.take_number();
  const bool range = reader.take_if(',');
  const auto most = range ? reader.take_number() : least;
  if (!least || !reader.take_if('}') || *least > most.value_or(*least)) {
    reader.refuse("what is between { and } is not a number or a range of numbers");
  }
  if (std::max(*least, most.value_or(0)) > most_times) {
    reader.refuse(fmt::format("a part is repeated more than {} times", most_times));
  }
  return repeat(std::move(part), *least, most.value_or(-1));
}

Expression json_characters(const Ranges& ranges) {
  const auto has = [&](char32_t c) {
    return std::ranges::any_of(
        ranges, [&](const CharacterRange& one) { return c >= one.first && c <= one.last; });
  };
  std::vector<Expression> forms;
  Ranges plain;
  for (const CharacterRange& own : {CharacterRange{0x20, 0x21}, CharacterRange{0x23, 0x5B},
                                    CharacterRange{0x5D, last_character}}) {
    const Ranges both = common(ranges, own);
    plain.insert(plain.end(), both.begin(), both.end());
  }
  if (!plain.empty()) {
    forms.push_back(characters(std::move(plain)));
  }
  for (const auto& [c, letter] : {std::pair{U'"', '"'},
                                  {U'\\', '\\'},
                                  {U'\b', 'b'},
                                  {U'\f', 'f'},
                                  {U'\n', 'n'},
                                  {U'\r', 'r'},
                                  {U'\t', 't'}}) {
    if (has(c)) {
      forms.push_back(bytes({'\\', letter}));
    }
  }
  for (char32_t c = 0; c < ' '; ++c) {
    if (has(c)) {
      forms.push_back(bytes(fmt::format("\\u{:04x}", static_cast<unsigned>(c))));
    }
  }
  return forms.size() == 1 ? std::move(forms[0]) : choice(std::move(forms));
}

Expression json_pattern(std::string_view pattern, const std::string& name) {
  return PatternParser(pattern, name).parse();
}

}  // namespace tessera::grammar
