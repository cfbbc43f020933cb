module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.data;

namespace tessera::text {

namespace {

/// Error (input): more tokens than so many.
void check_length(const TextModel& model, std::int64_t tokens, std::int64_t most) {
  if (model.longest() > 0 && tokens > most) {
    fail_input({.thing = "evaluate",
                .wrong = "a text is longer than the model computes",
                .expected = fmt::format("at most {} tokens", most),
                .got = fmt::format("{}", tokens)});
  }
}

}  // namespace

double log_likelihood(const TextModel& model, std::span<const std::int64_t> tokens,
                      std::span<const std::uint8_t> scored) {
  const std::int64_t count = std::ssize(tokens) - 1;
  check_length(model, std::ssize(tokens), model.longest() + 1);
  if (count < 1 || std::ranges::count(scored.subspan(1), 0) == count) {
    return 0;
  }
  std::vector<std::int64_t> targets;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    targets.push_back(scored[i] != 0 ? tokens[i] : data::ignored_target);
  }
  return -model.ranks().loss_sum(tokens.first(tokens.size() - 1), targets);
}

std::vector<TokenLikelihoods> prompt_likelihoods(const TextModel& model,
                                                 std::span<const std::int64_t> tokens,
                                                 std::int64_t likeliest) {
  check_length(model, std::ssize(tokens), model.longest());
  std::vector<TokenLikelihoods> all;
  if (tokens.size() > 1) {
    all = model.ranks().likelihoods(tokens, likeliest);
  }
  return all;
}

}  // namespace tessera::text
