module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>
module tessera.text;

import tessera.base;

namespace tessera::text {

std::vector<std::int64_t> repeated_tokens(std::span<const std::int64_t> tokens, std::int64_t most) {
  constexpr std::int64_t fewest = 2;
  constexpr std::int64_t longest = 4;
  constexpr std::int64_t looked_at = std::int64_t{1} << 16;
  const std::span<const std::int64_t> text =
      tokens.last(static_cast<std::size_t>(std::min(std::ssize(tokens), looked_at)));
  const std::int64_t size = std::ssize(text);
  const auto at = [&](std::int64_t place) { return text[static_cast<std::size_t>(place)]; };
  std::int64_t best = fewest - 1;
  std::int64_t from = size;  // what follows the best place
  for (std::int64_t end = size - 1; end >= fewest && best < longest; --end) {
    std::int64_t equal = 0;
    while (equal < longest && equal < end && at(end - 1 - equal) == at(size - 1 - equal)) {
      ++equal;
    }
    if (equal > best) {
      best = equal;
      from = end;
    }
  }
  std::vector<std::int64_t> guesses;
  for (std::int64_t i = from; from < size && std::ssize(guesses) < most; ++i) {
    guesses.push_back(i < size ? at(i) : guesses[static_cast<std::size_t>(i - size)]);
  }
  return guesses;
}

std::int64_t GuessCount::next(std::int64_t most) {
  if (pause_ > 0) {
    --pause_;
    return 0;
  }
  return std::min(count_, most);
}

void GuessCount::learn(std::int64_t guessed, std::int64_t right) {
  if (guessed == 0) {
    return;
  }
  constexpr std::int64_t most_pause = 32;
  if (right == 0 && guessed == 1) {
    longest_pause_ = std::clamp<std::int64_t>(2 * longest_pause_, 1, most_pause);
    pause_ = longest_pause_;
  } else if (right > 0) {
    longest_pause_ = 0;
  }
  count_ = right == guessed ? 2 * guessed : right + 1;
}

}  // namespace tessera::text
