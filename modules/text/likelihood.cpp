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

double log_likelihood(const TextModel& model, std::span<const std::int64_t> tokens,
                      std::span<const std::uint8_t> scored) {
  const std::int64_t longest = model.longest();
  const std::int64_t count = std::ssize(tokens) - 1;
  if (longest > 0 && count > longest) {
    fail_input({.thing = "evaluate",
                .wrong = "a text is longer than the model computes",
                .expected = fmt::format("at most {} tokens", longest + 1),
                .got = fmt::format("{}", tokens.size())});
  }
  if (count < 1 || std::ranges::count(scored.subspan(1), 0) == count) {
    return 0;
  }
  std::vector<std::int64_t> targets;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    targets.push_back(scored[i] != 0 ? tokens[i] : data::ignored_target);
  }
  return -model.ranks().loss_sum(tokens.first(tokens.size() - 1), targets);
}

}  // namespace tessera::text
