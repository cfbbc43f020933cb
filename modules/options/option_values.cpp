module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
module tessera.options;

import tessera.base;

namespace tessera {
namespace {

std::string number(double value) {
  return std::abs(value) < 1e15 && value == std::floor(value)
             ? fmt::format("{}", static_cast<std::int64_t>(value))
             : fmt::format("{}", value);
}

}  // namespace

bool contains(const Range& range, double value) {
  return std::isfinite(value) && (range.low_open ? value > range.low : value >= range.low) &&
         (range.high_open ? value < range.high : value <= range.high);
}

std::string describe(const Range& range) {
  const bool low = std::isfinite(range.low);
  const bool high = std::isfinite(range.high) && range.high < 1e15;
  const std::string above =
      fmt::format("{} {}", range.low_open ? "more than" : "at least", number(range.low));
  const std::string below =
      fmt::format("{} {}", range.high_open ? "less than" : "at most", number(range.high));
  if (low && high) {
    return above + " and " + below;
  }
  return low ? above : high ? below : "";
}

std::string expected_number(const std::string& what, const Range& range) {
  const std::string text = describe(range);
  return text.empty() ? what : what + " " + text;
}

std::string expected_words(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) {
    text += fmt::format("{}\"{}\"", text.empty() ? "" : " or ", word);
  }
  return text;
}

bool WordField::set(std::string_view word) const {
  const auto found = std::ranges::find(words_, word);
  if (found != words_.end()) {
    set_(static_cast<std::size_t>(found - words_.begin()));
  }
  return found != words_.end();
}

}  // namespace tessera
