module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <tessera/printable.hpp>
#include <vector>
module tessera.text;

import tessera.base;

namespace tessera::text {
namespace {

/// Source: Keskar et al., CTRL (2019), section 4.1; of negative logits as transformers does it.
void penalize(std::vector<double>& logits, std::span<const std::int64_t> before, double penalty) {
  for (const std::int64_t token : std::set<std::int64_t>(before.begin(), before.end())) {
    double& logit = logits.at(static_cast<std::size_t>(token));
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

void add_biases(std::vector<double>& logits, const std::map<std::int64_t, double>& biases) {
  for (const auto& [token, bias] : biases) {
    if (token < 0 || token >= std::ssize(logits)) {
      fail_input({.thing = "logit_bias",
                  .wrong = "the model has no such token",
                  .expected = fmt::format("ids from 0 to {}", std::ssize(logits) - 1),
                  .got = fmt::format("{}", token)});
    }
    logits[static_cast<std::size_t>(token)] += bias;
  }
}

/// Of tokens that were generated, as OpenAI's interface defines it: those of the prompt do not
/// count.
void penalize_generated(std::vector<double>& logits, std::span<const std::int64_t> generated,
                        double for_each, double for_any) {
  std::map<std::int64_t, int> counts;
  for (const std::int64_t token : generated) {
    ++counts[token];
  }
  for (const auto& [token, count] : counts) {
    logits.at(static_cast<std::size_t>(token)) -= for_each * count + for_any;
  }
}

void normalize(std::vector<Candidate>& all) {
  double sum = 0;
  for (const Candidate& one : all) {
    sum += one.probability;
  }
  for (Candidate& one : all) {
    one.probability /= sum;
  }
}

bool likelier(const Candidate& a, const Candidate& b) {
  return a.probability != b.probability ? a.probability > b.probability : a.token < b.token;
}

/// Moves the likeliest ones to the front, one after the other, until they have the sum.
void keep_sum(std::vector<Candidate>& all, double sum) {
  const auto after = [](const Candidate& a, const Candidate& b) { return likelier(b, a); };
  std::ranges::make_heap(all, after);
  std::vector<Candidate> kept;
  for (double reached = 0; reached < sum && !all.empty();) {
    std::ranges::pop_heap(all, after);
    kept.push_back(all.back());
    all.pop_back();
    reached += kept.back().probability;
  }
  all = std::move(kept);
}

}  // namespace

void SamplingOptions::check(const std::string& thing) const {
  const auto refuse = [&](const char* name, double value, const char* expected) {
    fail_input({.thing = thing,
                .wrong = fmt::format("{} is out of range", name),
                .expected = expected,
                .got = fmt::format("{}", printable(value))});
  };
  if (!(temperature >= 0 && temperature <= 100)) {
    refuse("temperature", temperature, "0 to 100");
  }
  if (top_k < 0) {
    refuse("top_k", static_cast<double>(top_k), "at least 0");
  }
  if (!(top_p > 0 && top_p <= 1)) {
    refuse("top_p", top_p, "above 0, at most 1");
  }
  if (!(min_p >= 0 && min_p <= 1)) {
    refuse("min_p", min_p, "0 to 1");
  }
  if (!(repetition_penalty > 0 && repetition_penalty <= 100)) {
    refuse("repetition_penalty", repetition_penalty, "above 0, at most 100");
  }
  constexpr double most_subtracted = 2;  // as OpenAI's interface has it
  if (!(std::abs(frequency_penalty) <= most_subtracted)) {
    refuse("frequency_penalty", frequency_penalty, "-2 to 2");
  }
  if (!(std::abs(presence_penalty) <= most_subtracted)) {
    refuse("presence_penalty", presence_penalty, "-2 to 2");
  }
  constexpr double most_bias = 100;
  for (const auto& [token, bias] : logit_bias) {
    if (!(std::abs(bias) <= most_bias)) {
      refuse("logit_bias", bias, "-100 to 100");
    }
  }
}

std::vector<Candidate> candidates(std::vector<double> logits, const TextTokens& before,
                                  const SamplingOptions& options, const std::vector<bool>* only) {
  if (!std::ranges::all_of(logits, [](double logit) { return std::isfinite(logit); })) {
    fail({.thing = "generate",
          .wrong = "the model's logits are not finite",
          .advice = "its weights are too large, or not finite"});
  }
  add_biases(logits, options.logit_bias);
  if (options.repetition_penalty != 1) {
    penalize(logits, before.all, options.repetition_penalty);
  }
  if (options.frequency_penalty != 0 || options.presence_penalty != 0) {
    penalize_generated(logits, before.all.subspan(before.prompt), options.frequency_penalty,
                       options.presence_penalty);
  }
  if (only != nullptr) {
    require(only->size() == logits.size() && std::ranges::find(*only, true) != only->end(),
            "generate: no token may follow");
    for (std::size_t i = 0; i < logits.size(); ++i) {
      logits[i] = (*only)[i] ? logits[i] : -std::numeric_limits<double>::infinity();
    }
  }
  const auto best = std::ranges::max_element(logits);
  if (options.temperature == 0) {
    return {{.token = best - logits.begin(), .probability = 1}};
  }
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (only == nullptr || (*only)[i]) {
      all.push_back({.token = static_cast<std::int64_t>(i),
                     .probability = std::exp((logits[i] - *best) / options.temperature)});
    }
  }
  if (options.top_k > 0 && options.top_k < std::ssize(all)) {
    std::ranges::partial_sort(all, all.begin() + options.top_k, likelier);
    all.resize(static_cast<std::size_t>(options.top_k));
  }
  normalize(all);
  if (options.top_p < 1) {
    keep_sum(all, options.top_p);
    normalize(all);
  }
  if (options.min_p > 0) {
    const double least =
        options.min_p * std::ranges::max_element(all, {}, &Candidate::probability)->probability;
    std::erase_if(all, [&](const Candidate& one) { return one.probability < least; });
    normalize(all);
  }
  // In the order of tokens, a rounding moves the bounds between them by as little as itself. In the
  // order of probabilities it exchanges two nearly equal tokens, and another one is drawn.
  if (!std::ranges::is_sorted(all, {}, &Candidate::token)) {
    std::ranges::sort(all, {}, &Candidate::token);
  }
  return all;
}

std::int64_t choose(std::span<const Candidate> from, double noise) {
  for (const Candidate& one : from) {
    noise -= one.probability;
    if (noise < 0) {
      return one.token;
    }
  }
  return from.back().token;
}

TokenLikelihoods likelihoods_of(std::span<const double> logits, std::int64_t token,
                                std::int64_t likeliest) {
  if (token < 0 || token >= std::ssize(logits)) {
    fail_input({.thing = "likelihood",
                .wrong = "the model has no such token",
                .expected = fmt::format("ids from 0 to {}", std::ssize(logits) - 1),
                .got = fmt::format("{}", token)});
  }
  const double best = std::ranges::max(logits);
  double sum = 0;
  for (const double logit : logits) {
    sum += std::exp(logit - best);
  }
  const double log_sum = best + std::log(sum);
  const auto of = [&](std::int64_t id) {
    return TokenLikelihood{.token = id,
                           .log_probability = logits[static_cast<std::size_t>(id)] - log_sum};
  };
  std::vector<std::int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), std::int64_t{0});
  const auto end = ids.begin() + std::min(likeliest, std::ssize(ids));
  std::ranges::partial_sort(ids, end, [&](std::int64_t a, std::int64_t b) {
    const double of_a = logits[static_cast<std::size_t>(a)];
    const double of_b = logits[static_cast<std::size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  TokenLikelihoods result{.own = of(token), .likeliest = {}};
  std::transform(ids.begin(), end, std::back_inserter(result.likeliest), of);
  return result;
}

}  // namespace tessera::text
