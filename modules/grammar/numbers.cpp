module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.grammar;

import :numbers;
import tessera.base;

namespace tessera::grammar {
namespace {

constexpr std::int64_t most_digits = 16;                       // of a number without a bound
constexpr std::int64_t largest_with_fraction = 1'000'000'000;  // so that a double keeps it apart

Expression digit(char first, char last) {
  return characters({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}
Expression any_digits(std::int64_t least, std::int64_t most) {
  return repeat(digit('0', '9'), least, most);
}

/// Texts of as many digits as both bounds have, from one to the other.
Expression digits_between(std::string_view least, std::string_view most) {
  if (least.empty()) {
    return bytes("");
  }
  const auto rest = static_cast<std::int64_t>(least.size() - 1);
  const std::string zeros(least.size() - 1, '0');
  const std::string nines(least.size() - 1, '9');
  if (least[0] == most[0]) {
    return sequence(
        {bytes(std::string(1, least[0])), digits_between(least.substr(1), most.substr(1))});
  }
  std::vector<Expression> all;
  char first = least[0];
  char last = most[0];
  if (least.substr(1) != zeros) {
    all.push_back(sequence({bytes(std::string(1, first)), digits_between(least.substr(1), nines)}));
    ++first;
  }
  if (most.substr(1) != nines) {
    all.push_back(sequence({bytes(std::string(1, last)), digits_between(zeros, most.substr(1))}));
    --last;
  }
  if (first <= last) {
    all.push_back(sequence({digit(first, last), any_digits(rest, rest)}));
  }
  return choice(std::move(all));
}

/// Numbers from `least` on, both without a sign; `most`: none is larger.
Expression naturals(std::uint64_t least, std::optional<std::uint64_t> most) {
  std::vector<Expression> all;
  if (most && *most < least) {
    return choice({});
  }
  std::string from = fmt::format("{}", least);
  const std::string to = most ? fmt::format("{}", *most) : std::string();
  while (from.size() < to.size() || (to.empty() && std::ssize(from) <= most_digits)) {
    all.push_back(digits_between(from, std::string(from.size(), '9')));
    from = "1" + std::string(from.size(), '0');
  }
  if (!to.empty()) {
    all.push_back(digits_between(from, to));
  } else if (std::ssize(fmt::format("{}", least)) > most_digits) {
    all.push_back(digits_between(from, std::string(from.size(), '9')));
  }
  return choice(std::move(all));
}

std::uint64_t magnitude(std::int64_t value) {
  return value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
}

/// Whole parts of numbers with a fraction, within bounds; `below_zero`: of those with a minus.
Expression signed_numbers(const NumberBounds& bounds, std::uint64_t least_below_zero) {
  std::vector<Expression> all;
  if (!bounds.most || *bounds.most >= 0) {
    const auto most = bounds.most ? std::optional(magnitude(*bounds.most)) : std::nullopt;
    all.push_back(naturals(magnitude(std::max<std::int64_t>(bounds.least.value_or(0), 0)), most));
  }
  if (!bounds.least || *bounds.least < 0) {
    const auto most = bounds.least ? std::optional(magnitude(*bounds.least)) : std::nullopt;
    const std::uint64_t least =
        bounds.most && *bounds.most < 0 ? magnitude(*bounds.most) : least_below_zero;
    all.push_back(sequence({bytes("-"), naturals(least, most)}));
  }
  return choice(std::move(all));
}

}  // namespace

Expression whole_numbers(const NumberBounds& bounds) { return signed_numbers(bounds, 1); }

Expression decimal_numbers(const DecimalBounds& bounds) {
  const auto& [least, most] = bounds.bounds;
  if (!least && !most) {
    return sequence(
        {signed_numbers({}, 0), optional(sequence({bytes("."), any_digits(1, most_digits)})),
         optional(sequence({characters({{'e', 'e'}, {'E', 'E'}}),
                            optional(characters({{'+', '+'}, {'-', '-'}})), any_digits(1, 2)}))});
  }
  NumberBounds whole = bounds.bounds;
  if (bounds.above && least) {
    ++*whole.least;
  }
  if (bounds.below && most) {
    --*whole.most;
  }
  std::vector<Expression> all = {whole_numbers(whole)};
  if (magnitude(least.value_or(0)) > static_cast<std::uint64_t>(largest_with_fraction) ||
      magnitude(most.value_or(0)) > static_cast<std::uint64_t>(largest_with_fraction)) {
    return choice(std::move(all));
  }
  // k and a fraction that is not 0 are between k and k + 1, on both sides of 0.
  const std::int64_t low = least.value_or(-largest_with_fraction);
  const std::int64_t high = most.value_or(largest_with_fraction);
  const Expression fraction = sequence({bytes("."), any_digits(0, 5), digit('1', '9')});
  if (high > std::max<std::int64_t>(low, 0)) {
    all.push_back(sequence(
        {naturals(magnitude(std::max<std::int64_t>(low, 0)), magnitude(high - 1)), fraction}));
  }
  if (low < std::min<std::int64_t>(high, 0)) {
    all.push_back(sequence(
        {bytes("-"), naturals(magnitude(std::min<std::int64_t>(high, 0)), magnitude(low + 1)),
         fraction}));
  }
  return choice(std::move(all));
}

}  // namespace tessera::grammar
