module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>
module tessera.grammar;

import tessera.base;

namespace tessera::grammar {

std::vector<CharacterRange> all_but(std::vector<CharacterRange> ranges) {
  std::ranges::sort(ranges, {}, &CharacterRange::first);
  std::vector<CharacterRange> others;
  char32_t next = 0;
  for (const auto& [first, last] : ranges) {
    if (first > next) {
      others.push_back({next, first - 1});
    }
    next = std::max<char32_t>(next, last + 1);
  }
  if (next <= last_character) {
    others.push_back({next, last_character});
  }
  return others;
}

Expression bytes(std::string text) {
  return {.kind = Expression::Kind::bytes, .text = std::move(text)};
}
Expression characters(std::vector<CharacterRange> ranges) {
  return {.kind = Expression::Kind::characters, .ranges = std::move(ranges)};
}
Expression sequence(std::vector<Expression> parts) {
  return {.kind = Expression::Kind::sequence, .parts = std::move(parts)};
}
Expression choice(std::vector<Expression> parts) {
  return {.kind = Expression::Kind::choice, .parts = std::move(parts)};
}
Expression repeat(Expression part, std::int64_t least, std::int64_t most) {
  Expression all{.kind = Expression::Kind::repeat, .least = least, .most = most};
  all.parts.push_back(std::move(part));
  return all;
}
Expression optional(Expression part) { return repeat(std::move(part), 0, 1); }
Expression rule(std::size_t number) { return {.kind = Expression::Kind::rule, .number = number}; }

std::size_t Grammar::add() { return add(choice({})); }

std::size_t Grammar::add(Expression expression) {
  rules.push_back(std::move(expression));
  return rules.size() - 1;
}

}  // namespace tessera::grammar
