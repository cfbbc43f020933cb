module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.grammar;

import :text_pattern;
import :numbers;
import :json_texts;
import tessera.base;

namespace tessera::grammar {
namespace {

/// What can be in a JSON text without an escape.
std::vector<CharacterRange> plain() { return {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, last_character}}; }

bool is_plain(std::u32string_view text) {
  return std::ranges::all_of(text, [](char32_t c) { return c >= ' ' && c != U'"' && c != U'\\'; });
}

/// What names consist of where they are written without quotes.
std::vector<CharacterRange> bare() {
  return {{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}, {'-', '-'}, {'.', '.'}};
}

/// Texts of these characters that are none of the names, which are sorted and begin alike up to
/// `depth`.
Expression none_of(std::span<const std::u32string> names, std::size_t depth,
                   const std::vector<CharacterRange>& letters) {
  std::vector<Expression> all;
  std::vector<CharacterRange> begins;
  const bool is_name = !names.empty() && names[0].size() == depth;
  for (std::size_t i = is_name ? 1 : 0; i < names.size();) {
    const char32_t c = names[i][depth];
    std::size_t end = i;
    while (end < names.size() && names[end][depth] == c) {
      ++end;
    }
    all.push_back(
        sequence({characters({{c, c}}), none_of(names.subspan(i, end - i), depth + 1, letters)}));
    begins.push_back({c, c});
    i = end;
  }
  const std::vector<CharacterRange> others = all_but(letters);
  begins.insert(begins.end(), others.begin(), others.end());
  all.push_back(sequence({characters(all_but(std::move(begins))), repeat(characters(letters), 0)}));
  if (!is_name) {
    all.push_back(bytes(""));
  }
  return choice(std::move(all));
}

/// Names of members that are none of these, which are sorted. `quoted`: as JSON.
Expression other_name(std::span<const std::u32string> names, bool quoted) {
  if (quoted) {
    return sequence({bytes("\""), none_of(names, 0, plain()), bytes("\"")});
  }
  std::vector<std::u32string> all = {U""};  // no name is empty
  all.insert(all.end(), names.begin(), names.end());
  return none_of(all, 0, bare());
}

std::u32string characters_of(const std::string& text) {
  CharacterReader reader(text, "name");
  std::u32string all;
  while (!reader.at_end()) {
    all += reader.take();
  }
  return all;
}

}  // namespace

// Source: the automaton of Knuth, Morris and Pratt: a state for each length of the mark's beginning
// that the text ends with.
Expression text_before(Grammar& grammar, const std::string& mark) {
  const std::u32string letters = characters_of(mark);
  const auto longest_end = [&](const std::u32string& text) {
    std::size_t length = std::min(text.size(), letters.size());
    while (!text.ends_with(std::u32string_view(letters).substr(0, length))) {
      --length;
    }
    return length;
  };
  std::vector<std::size_t> states;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    states.push_back(grammar.add());
  }
  const std::set<char32_t> own(letters.begin(), letters.end());
  std::vector<CharacterRange> others = {{0, 8}, {0xB, 0xC}, {0xE, 0x1F}};  // besides ends of lines
  for (const char32_t c : own) {
    others.push_back({c, c});
  }
  others = all_but(std::move(others));
  for (std::size_t i = 0; i < letters.size(); ++i) {
    std::vector<Expression> next = {sequence({characters(others), rule(states[0])})};
    for (const char32_t c : own) {
      const std::size_t length = longest_end(letters.substr(0, i) + c);
      const Expression one = characters({{c, c}});
      next.push_back(length == letters.size() ? one : sequence({one, rule(states[length])}));
    }
    grammar.rules[states[i]] = choice(std::move(next));
  }
  return rule(states[0]);
}

Expression JsonTexts::blank() {
  if (!blank_) {
    blank_ =
        grammar_.add(choice({bytes(""), bytes(" "),
                             sequence({repeat(bytes("\n"), 1, 2),
                                       repeat(characters({{' ', ' '}, {'\t', '\t'}}), 0, 20)})}));
  }
  return rule(*blank_);
}

Expression JsonTexts::after_comma(Expression part) {
  return sequence({bytes(","), blank(), std::move(part)});
}

Expression JsonTexts::member(const Expression& name, Expression value) {
  return sequence({name, bytes(":"), blank(), std::move(value)});
}

Expression JsonTexts::text(const std::string& text) const {
  return notation_.quote.empty() ? bytes(json_text(nlohmann::json(text)))
                                 : bytes(notation_.quote + text + notation_.quote);
}

Expression JsonTexts::string(std::int64_t least, std::int64_t most) {
  if (!notation_.quote.empty()) {
    if (!character_) {
      character_ = grammar_.add(text_before(grammar_, notation_.quote));
    }
    return sequence({bytes(notation_.quote), rule(*character_)});
  }
  if (!character_) {
    // Halves of characters are no JSON that every reader takes.
    const CharacterRange digits{'0', '9'};
    const CharacterRange capitals{'A', 'F'};
    const CharacterRange letters{'a', 'f'};
    const Expression hex = characters({digits, capitals, letters});
    const Expression four = choice(
        {sequence(
             {characters({digits, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), hex, hex, hex}),
         sequence({characters({{'d', 'd'}, {'D', 'D'}}), characters({{'0', '7'}}), hex, hex})});
    character_ = grammar_.add(choice(
        {characters(plain()), sequence({bytes("\\"), choice({characters({{'"', '"'},
                                                                         {'\\', '\\'},
                                                                         {'/', '/'},
                                                                         {'b', 'b'},
                                                                         {'f', 'f'},
                                                                         {'n', 'n'},
                                                                         {'r', 'r'},
                                                                         {'t', 't'}}),
                                                             sequence({bytes("u"), four})})})}));
  }
  return sequence({bytes("\""), repeat(rule(*character_), least, most), bytes("\"")});
}

Expression JsonTexts::name() {
  return notation_.quote.empty() ? string() : repeat(characters(bare()), 1);
}

Expression JsonTexts::any_value() {
  if (!value_) {
    value_ = grammar_.add();
    const Expression any = rule(*value_);
    Expression all = choice({any_object(), list({}, any, 0, std::int64_t{1} << 53), string(),
                             decimal_numbers({}), bytes("true"), bytes("false"), bytes("null")});
    grammar_.rules[*value_] = std::move(all);
  }
  return rule(*value_);
}

Expression JsonTexts::any_object() {
  if (!object_) {
    object_ = grammar_.add();
    const Expression any = any_value();
    const Expression pair = member(name(), any);
    grammar_.rules[*object_] =
        sequence({bytes("{"), blank(),
                  optional(sequence({pair, repeat(after_comma(pair), 0), blank()})), bytes("}")});
  }
  return rule(*object_);
}

Expression JsonTexts::list(std::vector<Expression> first, Expression others, std::int64_t least,
                           std::int64_t most) {
  const Expression other = shared(std::move(others));
  const std::int64_t known = std::ssize(first);
  const auto times = [](Expression part, std::int64_t low, std::int64_t high) {
    const std::int64_t unlimited = std::int64_t{1} << 40;
    return high < low ? choice({}) : repeat(std::move(part), low, high > unlimited ? -1 : high);
  };
  // From the last one to the first: what may follow after so many of them.
  Expression rest = choice({});
  if (known > 0) {
    rest = times(after_comma(other), std::max<std::int64_t>(least - known, 0), most - known);
  } else {
    std::vector<Expression> forms;
    if (least == 0) {
      forms.push_back(bytes(""));
    }
    if (most > 0) {
      forms.push_back(sequence(
          {other, times(after_comma(other), std::max<std::int64_t>(least - 1, 0), most - 1)}));
    }
    rest = choice(std::move(forms));
  }
  for (std::int64_t i = known - 1; i >= 0; --i) {
    Expression& own = first[static_cast<std::size_t>(i)];
    std::vector<Expression> forms;
    if (i < most) {
      Expression next = i == 0 ? std::move(own) : after_comma(std::move(own));
      forms.push_back(sequence({std::move(next), shared(std::move(rest))}));
    }
    if (i >= least) {
      forms.push_back(bytes(""));
    }
    rest = choice(std::move(forms));
  }
  return sequence({bytes("["), blank(), std::move(rest), blank(), bytes("]")});
}

Expression JsonTexts::object(const std::vector<JsonMember>& members, Expression others) {
  std::vector<std::u32string> names;
  for (const JsonMember& one : members) {
    std::u32string name = characters_of(one.name);
    if (is_plain(name)) {
      names.push_back(std::move(name));
    }
  }
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  const Expression other =
      shared(member(other_name(names, notation_.quote.empty()), std::move(others)));
  // From the last one to the first: what may follow a member, and what may be the first one.
  Expression later = shared(repeat(after_comma(other), 0));
  Expression first = shared(optional(sequence({other, later})));
  for (auto one = members.rbegin(); one != members.rend(); ++one) {
    const Expression own =
        shared(member(notation_.quote.empty() ? text(one->name) : bytes(one->name), one->value));
    std::vector<Expression> follows = {sequence({after_comma(own), later})};
    std::vector<Expression> begins = {sequence({own, later})};
    if (!one->required) {
      follows.push_back(later);
      begins.push_back(first);
    }
    later = shared(choice(std::move(follows)));
    first = shared(choice(std::move(begins)));
  }
  return sequence({bytes("{"), blank(), first, blank(), bytes("}")});
}

bool is_bare_name(std::string_view name) {
  const auto letters = bare();
  return !name.empty() && std::ranges::all_of(name, [&](char c) {
    return std::ranges::any_of(letters, [&](const CharacterRange& range) {
      const auto code = static_cast<char32_t>(static_cast<unsigned char>(c));
      return code >= range.first && code <= range.last;
    });
  });
}

std::string pattern_of_format(std::string_view format) {
  const std::string date =
      "[1-9]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|"
      "(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))";
  const std::string time =
      "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?";
  const std::string host = label + "(?:\\." + label + "){0,3}";
  const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  const std::string group = "[0-9a-fA-F]{1,4}";
  const std::string hex = "[0-9a-fA-F]";
  const std::string number = "\\d{1,6}";
  const auto units = [&](char large, char middle, char small) {
    return fmt::format("(?:{0}{1}(?:{0}{2}(?:{0}{3})?)?|{0}{2}(?:{0}{3})?|{0}{3})", number, large,
                       middle, small);
  };
  const std::map<std::string_view, std::string> all = {
      {"date", date},
      {"time", time},
      {"date-time", date + "T" + time},
      {"uuid", fmt::format("{0}{{8}}-{0}{{4}}-{0}{{4}}-{0}{{4}}-{0}{{12}}", hex)},
      {"hostname", host},
      {"email", "[A-Za-z0-9_+-]{1,20}(?:\\.[A-Za-z0-9_+-]{1,20}){0,2}@" + host},
      {"ipv4", fmt::format("{0}(?:\\.{0}){{3}}", byte)},
      {"ipv6", fmt::format("(?:{0}(?::{0}){{7}}|::(?:{0}(?::{0}){{0,5}})?)", group)},
      {"duration", fmt::format("P(?:{0}W|{1}(?:T{2})?|T{2})", number, units('Y', 'M', 'D'),
                               units('H', 'M', 'S'))}};
  const auto found = all.find(format);
  return found == all.end() ? std::string() : "^" + found->second + "$";
}

}  // namespace tessera::grammar
