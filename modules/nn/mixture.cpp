// A mixture of experts as a layer: its router, its experts, the loads that it counts and balances.
// Shapes: B rows, T tokens of each, C features of the model, E experts, P experts per token.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import :whole_sums;
import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

namespace tessera::nn {
namespace {

/// Choices as [rows, tokens, experts_per_token], of this rank.
Tensor local_rows(const Tensor& chosen) {
  Tensor local = local_of(chosen);
  const int dims = local.dims();
  if (dims == 3) {
    return local;
  }
  const std::int64_t per_token = local.size(-1);
  return ops::reshape(local, {1, local.numel() / std::max<std::int64_t>(per_token, 1), per_token});
}

/// The layout of values of rows, of which ranks that share rows have terms: that of [rows, tokens,
/// ...] without the tokens.
Layout terms_of_rows(Layout tokens) {
  for (int axis = 0; axis < tokens.ndim(); ++axis) {
    if (tokens.placement(axis).is_shard(1)) {
      tokens = tokens.with_placement(axis, Partial());
    }
  }
  return tokens;
}

/// The layout of sums over all tokens.
Layout terms_of_tokens(Layout tokens) {
  for (int axis = 0; axis < tokens.ndim(); ++axis) {
    tokens = tokens.with_placement(
        axis, tokens.placement(axis).is_shard() ? Partial() : Placement(Replicate()));
  }
  return tokens;
}

/// Values of each of this rank's rows as those of all.
Tensor of_rows(const Tensor& local, const Tensor& like) {
  if (!like.is_distributed()) {
    return local;
  }
  Dims shape = local.shape();
  shape[0] = like.size(0);
  return whole(from_local(local, terms_of_rows(like.layout()), shape));
}

/// Whether a limit keeps the choices, as this rank has them. Which tokens of a sequence come first
/// is known of whole sequences only: ranks that share one exchange what its tokens chose.
Tensor kept_choices(const Tensor& chosen, double capacity, std::int64_t experts) {
  const auto kept_of = [&](const Tensor& local) {
    const double share =
        static_cast<double>(local.size(1) * local.size(2)) / static_cast<double>(experts);
    return within_capacity(local, chosen_by_row(local, experts),
                           static_cast<std::int64_t>(std::ceil(capacity * share)));
  };
  if (!chosen.is_distributed() || !chosen.layout().shards(1)) {
    return kept_of(local_rows(chosen));
  }
  Layout sequences = chosen.layout();
  for (int axis = 0; axis < sequences.ndim(); ++axis) {
    if (sequences.placement(axis).is_shard(1)) {
      sequences = sequences.with_placement(axis, Replicate());
    }
  }
  const Tensor kept = kept_of(local_of(redistribute(chosen, sequences)));
  return local_of(redistribute(from_local(kept, sequences, chosen.shape()), chosen.layout()));
}

BufferPointer counter(std::int64_t extent) {
  return std::make_shared<Buffer>(zeros({extent}, DType::i64), false);
}

}  // namespace

/// What the router computes.
struct SparseMixture::Routed {
  Tensor logits;  // (..., E), f32 or f64
  Choice choice;
};

SparseMixture::SparseMixture(const MixtureOptions& options) : options_(options) {
  options.check();
  const FeedForwardOptions& expert = options.expert;
  gate_ = add_child<Linear>("gate", expert.dim, options.experts, options.logit_bias,
                            expert.standard_deviation, expert.dtype);
  const auto projection = [&](const char* name, std::int64_t in, std::int64_t out) {
    return add_child<Linear>(name, in, out, options.latent_bias, expert.standard_deviation,
                             expert.dtype);
  };
  if (options.latent_dim > 0) {
    latent_in_ = projection("fc1_latent_proj", expert.dim, options.latent_dim);
  }
  experts_ = add_child<Experts>("experts", options);
  if (options.latent_dim > 0) {
    latent_out_ = projection("fc2_latent_proj", options.latent_dim, expert.dim);
  }
  if (options.shared_width > 0) {
    FeedForwardOptions shared = expert;
    shared.width = options.shared_width;
    shared.bias = options.shared_bias;
    shared_ = expert.gated ? Child(add_child<GatedMLP>("shared_expert", shared))
                           : Child(add_child<PlainMLP>("shared_expert", shared));
    if (options.shared_gate) {
      shared_gate_ = add_child<Linear>("shared_expert_gate", expert.dim, 1, false,
                                       expert.standard_deviation, expert.dtype);
    }
  }
  if (options.bias) {
    add_bias();
  }
}

std::string_view SparseMixture::kind() const { return "SparseMixture"; }
std::vector<std::string> SparseMixture::input_names() const { return {"hidden_states"}; }

void SparseMixture::add_bias() {
  if (!bias_) {
    bias_ = std::make_shared<Buffer>(zeros({options_.experts}, DType::f32));
    add_buffer("choice_bias", bias_);
  }
}

void SparseMixture::balance(const BalanceOptions& options) {
  options.check();
  require(tokens_ == nullptr, "mixture of experts: balance() was called before");
  balance_ = options;
  tokens_ = counter(options_.experts);
  dropped_ = counter(1);
  add_buffer("tokens", tokens_);
  add_buffer("dropped", dropped_);
  if (options.bias_rate > 0) {
    add_bias();
    balanced_ = counter(options_.experts);
    add_buffer("balanced", balanced_);
    attach<StepEnd>().call = [this] { update_bias(); };
  }
}

SparseMixture::Routed SparseMixture::route(const Tensor& hidden) {
  Routed routed;
  const Tensor logits = (*gate_)(hidden);
  routed.logits = ops::cast(logits, logits.dtype() == DType::f64 ? DType::f64 : DType::f32);
  routed.choice = choose_experts(routed.logits, options_, bias_ ? bias_->value : Tensor());
  return routed;
}

void SparseMixture::count(const Tensor& by_row, const Tensor& kept) {
  ops::add_(local_of(tokens_->value), ops::sum(by_row, {0}));
  if (kept) {
    const Tensor all = full({1}, static_cast<double>(kept.numel()), DType::i64, kept.device());
    const Tensor taken = ops::reshape(ops::sum(ops::cast(kept, DType::i64)), {1});
    ops::add_(local_of(dropped_->value), ops::sub(all, taken));
  }
}

Tensor SparseMixture::balance_term(const Routed& routed, const Tensor& by_row) const {
  const Tensor& scores = routed.choice.scores;
  Tensor all;
  if (balance_.loss > 0) {
    // (B, T, E)
    const Tensor shares = options_.score == RouterScore::softmax
                              ? scores
                              : ops::div(scores, ops::sum(scores, {-1}, true));
    const double tokens = static_cast<double>(scores.size(1));
    // (B, E)
    const Tensor loads =
        ops::mul_scalar(of_rows(ops::cast(by_row, scores.dtype()), scores), 1.0 / tokens);
    const Tensor means = whole(ops::mean(shares, {1}));  // (B, E)
    // (B)
    all = ops::mul_scalar(ops::sum(ops::mul(means, loads), {-1}),
                          balance_.loss * static_cast<double>(options_.experts));
  }
  if (balance_.z_loss > 0) {
    const Tensor size = ops::logsumexp(routed.logits, {-1});  // (B, T)
    // (B)
    const Tensor z = ops::mul_scalar(whole(ops::mean(ops::mul(size, size), {1})), balance_.z_loss);
    all = all ? ops::add(all, z) : z;
  }
  return all;
}

/// `between`: what is computed before its last projection.
Tensor SparseMixture::shared_result(const Tensor& hidden, std::function<void()> between) {
  if (auto* const layer = dynamic_cast<GatedMLP*>(&*shared_); layer != nullptr) {
    layer->compute_between(std::move(between));
  }
  const Tensor result = (*shared_)(hidden);
  return shared_gate_ ? ops::mul(ops::sigmoid((*shared_gate_)(hidden)), result) : result;
}

Tensors SparseMixture::forward(const Tensors& inputs) {
  const Tensor& hidden = input(inputs, 0);  // (B, T, C) or (..., C)
  const Routed routed = route(hidden);
  const Tensor& chosen = routed.choice.experts;  // (..., P)
  const bool balances = is_training() && tokens_ != nullptr;
  const bool has_term = balances && (balance_.loss > 0 || balance_.z_loss > 0);
  Tensor by_row;  // (B, E)
  Tensor kept;    // (..., P), bool
  if (balances) {
    const bool limited = balance_.capacity > 0;
    if ((has_term || limited) && hidden.dims() != 3) {
      fail_input(
          {.thing = "module '" + name() + "'",
           .wrong = limited ? "a capacity is that of sequences"
                            : "the losses of its router are those of sequences",
           .expected = "hidden states [sequences, tokens, dim]",
           .got = hidden.is_distributed() ? to_string(*hidden.spec()) : to_string(hidden.shape())});
    }
    const NoGrad constant;
    by_row = chosen_by_row(local_rows(chosen), options_.experts);
    if (limited) {
      kept = kept_choices(chosen, balance_.capacity, options_.experts);
    }
    counted_ = hidden.is_distributed() ? terms_of_tokens(hidden.layout()) : Layout();
    if (!in_backward()) {  // what is computed again was counted
      count(by_row, kept);
    }
    if (kept && hidden.is_distributed()) {
      kept = from_local(kept, chosen.layout(), chosen.shape());
    }
  }
  Tensors operands{latent_in_ ? (*latent_in_)(hidden) : hidden, routed.choice.weights, chosen};
  if (kept) {
    operands.push_back(kept);
  }
  Tensor shared;
  auto* const experts = dynamic_cast<Experts*>(&*experts_);
  if (shared_ && experts != nullptr) {
    experts->compute_beside(
        [&](const std::function<void()>& work) { shared = shared_result(hidden, work); });
  }
  Tensor result = (*experts_)(operands)[0];  // as hidden
  result = latent_out_ ? (*latent_out_)(result) : result;
  if (shared_) {
    result = ops::add(result, shared ? shared : shared_result(hidden, nullptr));
  }
  return has_term ? Tensors{result, balance_term(routed, by_row)} : Tensors{result};
}

/// What it does at the end of a step.
void SparseMixture::update_bias() {
  const Tensor& tokens = local_of(tokens_->value);
  const Tensor& before = local_of(balanced_->value);
  Tensor loads = ops::cast(ops::sub(tokens, before), DType::f64);
  if (counted_) {
    loads = redistribute(from_local(loads, counted_), Layout::replicated(counted_.mesh())).local();
  }
  const Tensor missing = ops::sign(ops::sub(ops::mean(loads), loads));
  ops::add_(local_of(bias_->value), ops::cast(missing, DType::f32), balance_.bias_rate);
  ops::copy_(before, tokens);
}

std::vector<SparseMixture*> all_mixtures(Module& root) {
  std::vector<SparseMixture*> all;
  for (Module* const module : all_modules(root)) {
    if (auto* const mixture = dynamic_cast<SparseMixture*>(module)) {
      all.push_back(mixture);
    }
  }
  return all;
}

int balance_experts(Module& root, const BalanceOptions& options) {
  options.check();
  const std::vector<SparseMixture*> mixtures = all_mixtures(root);
  BalanceOptions of_each = options;
  of_each.loss /= static_cast<double>(std::max<std::size_t>(mixtures.size(), 1));
  of_each.z_loss /= static_cast<double>(std::max<std::size_t>(mixtures.size(), 1));
  for (SparseMixture* const mixture : mixtures) {
    mixture->balance(of_each);
  }
  root.set_names(root.name());  // of the buffers
  return static_cast<int>(mixtures.size());
}

}  // namespace tessera::nn
