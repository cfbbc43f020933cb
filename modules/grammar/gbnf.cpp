module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
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

constexpr std::size_t largest_text = std::size_t{1} << 18;
constexpr int deepest_brackets = 60;

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : reader_(text, "grammar") {}

  Grammar parse() {
    number_of("root");
    skip_blanks(true);
    while (!reader_.at_end()) {
      rule_definition();
      skip_blanks(true);
    }
    for (const auto& [name, number] : numbers_) {
      if (!defined_.contains(name)) {
        reader_.refuse(fmt::format("there is no rule '{}'", name));
      }
    }
    return std::move(grammar_);
  }

 private:
  static bool is_of_name(char32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  static bool is_line_end(char32_t c) { return c == '\n' || c == '\r'; }

  void skip_blanks(bool lines) {
    while (!reader_.at_end()) {
      const char32_t c = reader_.peek();
      if (c == '#') {
        while (!reader_.at_end() && !is_line_end(reader_.peek())) {
          reader_.take();
        }
      } else if (c == ' ' || c == '\t' || (lines && is_line_end(c))) {
        reader_.take();
      } else {
        return;
      }
    }
  }

  std::string name() {
    std::string text;
    while (is_of_name(reader_.peek())) {
      text += static_cast<char>(reader_.take());
    }
    if (text.empty()) {
      reader_.refuse("a name is missing");
    }
    return text;
  }

  std::size_t number_of(const std::string& rule_name) {
    const auto found = numbers_.find(rule_name);
    return found != numbers_.end() ? found->second : numbers_[rule_name] = grammar_.add();
  }

  void rule_definition() {
    const std::string rule_name = name();
    const std::size_t number = number_of(rule_name);
    skip_blanks(false);
    if (!reader_.take_if(':') || !reader_.take_if(':') || !reader_.take_if('=')) {
      reader_.refuse("'::=' is missing");
    }
    if (!defined_.insert(rule_name).second) {
      reader_.refuse(fmt::format("there are two rules '{}'", rule_name));
    }
    skip_blanks(true);
    Expression all = alternatives(0);
    grammar_.rules[number] = std::move(all);
    if (!reader_.at_end() && !is_line_end(reader_.peek())) {
      reader_.refuse("a character is not one of a rule");
    }
  }

  /// In brackets, lines may end anywhere.
  Expression alternatives(int depth) {
    std::vector<Expression> all;
    do {
      skip_blanks(true);
      all.push_back(parts(depth));
    } while (reader_.take_if('|'));
    return all.size() == 1 ? std::move(all[0]) : choice(std::move(all));
  }

  Expression parts(int depth) {
    std::vector<Expression> all;
    while (true) {
      auto one = part(depth);
      if (!one) {
        return sequence(std::move(all));
      }
      all.push_back(repeated(reader_, std::move(*one)));
      skip_blanks(depth > 0);
    }
  }

  std::optional<Expression> part(int depth) {
    const char32_t c = reader_.peek();
    if (c == '"') {
      return literal();
    }
    if (c == '[') {
      return character_set();
    }
    if (c == '(') {
      if (depth >= deepest_brackets) {
        reader_.refuse("too many brackets are within each other");
      }
      reader_.take();
      Expression inner = alternatives(depth + 1);
      if (!reader_.take_if(')')) {
        reader_.refuse("a bracket is not closed");
      }
      return inner;
    }
    if (c == '.') {
      reader_.take();
      return characters({{0, last_character}});
    }
    if (c == '<' || c == '!') {
      reader_.refuse("tokens as parts are not supported; write their text");
    }
    return is_of_name(c) ? std::optional(grammar::rule(number_of(name()))) : std::nullopt;
  }

  char32_t character() {
    const char32_t c = reader_.take();
    if (c != '\\') {
      return c;
    }
    const char32_t escaped = reader_.take();
    switch (escaped) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return reader_.take_hex(2);
      case 'u':
        return reader_.take_hex(4);
      case 'U':
        return reader_.take_hex(8);
      case '\\':
      case '"':
      case '[':
      case ']':
        return escaped;
      default:
        reader_.refuse("an escape is not known");
    }
  }

  Expression literal() {
    reader_.take();
    std::string text;
    while (!reader_.take_if('"')) {
      if (reader_.at_end() || is_line_end(reader_.peek())) {
        reader_.refuse("a text is not closed");
      }
      append_utf8(text, character());
    }
    return bytes(std::move(text));
  }

  Expression character_set() {
    reader_.take();
    const bool excludes = reader_.take_if('^');
    std::vector<CharacterRange> ranges;
    while (!reader_.take_if(']')) {
      if (reader_.at_end()) {
        reader_.refuse("a set of characters is not closed");
      }
      const char32_t first = character();
      char32_t last = first;
      if (reader_.peek() == '-' && reader_.peek(1) != ']') {
        reader_.take();
        last = character();
      }
      if (last < first || last > last_character) {
        reader_.refuse("a range of characters ends before it begins");
      }
      ranges.push_back({first, last});
    }
    return characters(excludes ? all_but(std::move(ranges)) : std::move(ranges));
  }

  CharacterReader reader_;
  Grammar grammar_;
  std::map<std::string, std::size_t> numbers_;
  std::set<std::string> defined_;
};

}  // namespace

Grammar parse_gbnf(std::string_view text) {
  if (text.size() > largest_text) {
    fail_input({.thing = "grammar",
                .wrong = "it is too large",
                .expected = fmt::format("at most {} bytes", largest_text),
                .got = fmt::format("{}", text.size())});
  }
  return GbnfParser(text).parse();
}

}  // namespace tessera::grammar
