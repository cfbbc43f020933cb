module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
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

void score_texts(const TextModel& model, Engine& engine, std::size_t texts,
                 const std::function<ScoredText(std::size_t)>& text,
                 const std::function<void(std::size_t, const TextLikelihood&)>& done) {
  std::exception_ptr failed;
  const auto submit = [&](std::size_t number) {
    ScoredText scored = text(number);
    check_length(model, std::ssize(scored.tokens), model.longest() + 1);
    const auto found = std::make_shared<TextLikelihood>();
    const auto add = [found](const TokenLikelihoods& one) {
      found->log_probability += one.own.log_probability;
      found->greedy = found->greedy && one.likeliest.at(0).token == one.own.token;
    };
    engine.submit(
        {.prompt = std::move(scored.tokens),
         .tokens = 0,
         .scored = {.first = std::max<std::int64_t>(scored.first, 1), .likeliest = 1, .take = add},
         .wanted = [&] { return !failed; },
         .ended =
             [&, found, number](const std::exception* error) {
               if (error != nullptr && !failed) {
                 failed = std::current_exception();
               } else if (!failed) {
                 done(number, *found);
               }
             }});
  };
  for (std::size_t next = 0; next < texts && !failed;) {
    if (engine.size() < 2 * engine.most()) {
      submit(next++);
    } else {
      engine.step();
    }
  }
  while (engine.step()) {
  }
  if (failed) {
    std::rethrow_exception(failed);
  }
}

}  // namespace tessera::text
