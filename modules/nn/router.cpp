// How tokens choose experts, and how many of their choices an expert takes. Shapes: B rows, T
// tokens of each, E experts in G groups, P experts per token.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

void MixtureOptions::check() const {
  if (experts < 1 || experts_per_token < 1 || experts_per_token > experts) {
    fail_input({.thing = "mixture of experts",
                .wrong = "a token has at least one expert, and at most as many as there are",
                .got = fmt::format("{} experts, {} per token", experts, experts_per_token)});
  }
  if (groups < 1 || experts % groups != 0 || groups_per_token < 1 || groups_per_token > groups ||
      experts_per_token > experts / groups * groups_per_token) {
    fail_input({.thing = "mixture of experts",
                .wrong = "groups have equally many experts, and a token's groups at least as many "
                         "as it has",
                .got = fmt::format("{} experts in {} groups, {} of {} groups per token", experts,
                                   groups, experts_per_token, groups_per_token)});
  }
  if (expert.width < 1 || shared_width < 0) {
    fail_input({.thing = "mixture of experts",
                .wrong = "an expert has at least one feature",
                .got = fmt::format("{} features", expert.width)});
  }
  if (latent_dim < 0 || (!expert.gated && expert.limits.most > 0) ||
      expert.activation == Activation::xielu) {
    fail_input({.thing = "mixture of experts",
                .wrong = "latent features are at least one or 0, limits are those of a gate, and "
                         "experts do not learn their activation",
                .got = fmt::format("{} latent features", latent_dim)});
  }
  expert.limits.check();
}

void BalanceOptions::check() const {
  for (const auto& [name, value] : {std::pair{"loss", loss},
                                    {"z_loss", z_loss},
                                    {"bias_rate", bias_rate},
                                    {"capacity", capacity}}) {
    if (!(value >= 0) || !std::isfinite(value)) {
      fail_input({.thing = fmt::format("balance of experts: {}", name),
                  .wrong = "it is no number from 0",
                  .got = fmt::format("{}", value)});
    }
  }
}

namespace {

/// Scores of experts outside of a token's groups become less than all others.
Tensor within_groups(const Tensor& scores, const MixtureOptions& options) {
  const std::int64_t members = options.experts / options.groups;
  // (..., G, E / G)
  const Tensor grouped = ops::unflatten(scores, -1, {options.groups, members});
  const std::int64_t counted = options.group_score == GroupScore::best ? 1 : 2;
  // (..., G)
  const Tensor best = ops::sum(ops::topk(grouped, std::min(counted, members)).values, {-1});
  const Tensor chosen =
      ops::topk(best, options.groups_per_token).indices;  // (..., groups per token)
  const Tensor marks = ops::sum(ops::one_hot(chosen, options.groups), {-2});  // (..., G)
  const Tensor outside = ops::unsqueeze(ops::eq(marks, 0.0), -1);             // (..., G, 1)
  return ops::flatten(ops::masked_fill(grouped, outside, -std::numeric_limits<double>::infinity()),
                      -2, -1);
}

}  // namespace

Choice choose_experts(const Tensor& logits, const MixtureOptions& options, const Tensor& bias) {
  Choice choice;
  // (..., E)
  choice.scores =
      options.score == RouterScore::softmax ? ops::softmax(logits, -1) : ops::sigmoid(logits);
  Tensor chosen_by =
      bias ? ops::add(choice.scores, ops::cast(bias, logits.dtype())) : choice.scores;
  if (options.groups > 1) {
    chosen_by = within_groups(chosen_by, options);
  }
  auto [largest, experts] = ops::topk(chosen_by, options.experts_per_token);  // (..., P)
  choice.experts = experts;
  choice.weights = chosen_by.same_as(choice.scores)
                       ? std::move(largest)
                       : ops::gather(choice.scores, choice.experts, -1);
  if (options.normalize) {
    choice.weights = ops::div(choice.weights, ops::sum(choice.weights, {-1}, true));
  }
  if (options.scale != 1) {
    choice.weights = ops::mul_scalar(choice.weights, options.scale);
  }
  return choice;
}

Tensor chosen_by_row(const Tensor& chosen, std::int64_t experts) {
  const std::int64_t rows = chosen.size(0);
  // (B, T * P)
  const Tensor flat = ops::reshape(chosen, {rows, chosen.size(1) * chosen.size(2)});
  // (B, E)
  return ops::scatter_add(zeros({rows, experts}, DType::i64, chosen.device()), flat,
                          ops::ones_like(flat), 1);
}

Tensor within_capacity(const Tensor& chosen, const Tensor& by_row, std::int64_t most) {
  // (B, T * P), as the tensors below but `first`
  const Tensor flat = ops::reshape(chosen, {chosen.size(0), chosen.size(1) * chosen.size(2)});
  const Tensor place = ops::argsort(ops::argsort(flat, 1), 1);    // stable: in the order of tokens
  const Tensor first = ops::sub(ops::cumsum(by_row, 1), by_row);  // (B, E)
  const Tensor number = ops::sub(place, ops::gather(first, flat, 1));
  return ops::reshape(ops::lt(number, static_cast<double>(most)), chosen.shape());
}

}  // namespace tessera::nn
