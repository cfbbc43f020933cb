// The gated feed-forward part, and how tokens choose experts.
module;
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

GatedMLP::GatedMLP(const FeedForwardOptions& options) : activation_(options.activation) {
  const auto projection = [&](const char* name, std::int64_t in, std::int64_t out) {
    return add_child<Linear>(name, in, out, options.bias, options.standard_deviation,
                             options.dtype);
  };
  gate_ = projection("gate_proj", options.dim, options.width);
  up_ = projection("up_proj", options.dim, options.width);
  down_ = projection("down_proj", options.width, options.dim);
}

std::string_view GatedMLP::kind() const { return "GatedMLP"; }
std::vector<std::string> GatedMLP::input_names() const { return {"hidden_states"}; }

Tensors GatedMLP::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  const Tensor gate = (*gate_)(x);
  const Tensor up = (*up_)(x);
  return {(*down_)(gated(activation_, gate, up))};
}

Tensor gated(Activation activation, const Tensor& gate, const Tensor& up) {
  return activation == Activation::silu ? ops::swiglu(gate, up)
                                        : ops::mul(ops::gelu(gate, true), up);
}

void MixtureOptions::check() const {
  if (experts < 1 || experts_per_token < 1 || experts_per_token > experts) {
    fail_input({.thing = "mixture of experts",
                .wrong = "a token has at least one expert, and at most as many as there are",
                .got = fmt::format("{} experts, {} per token", experts, experts_per_token)});
  }
  if (expert.width < 1 || expert.bias) {
    fail_input({.thing = "mixture of experts",
                .wrong = "an expert has at least one feature, and no biases",
                .got = fmt::format("{} features, bias {}", expert.width, expert.bias)});
  }
}

SparseMixture::SparseMixture(const MixtureOptions& options)
    : experts_per_token_(options.experts_per_token), normalize_(options.normalize) {
  options.check();
  gate_ = add_child<Linear>("gate", options.expert.dim, options.experts, false,
                            options.expert.standard_deviation, options.expert.dtype);
  experts_ = add_child<Experts>("experts", options);
}

std::string_view SparseMixture::kind() const { return "SparseMixture"; }
std::vector<std::string> SparseMixture::input_names() const { return {"hidden_states"}; }

Tensors SparseMixture::forward(const Tensors& inputs) {
  const Tensor& hidden = input(inputs, 0);
  const Tensor logits = (*gate_)(hidden);
  const DType wide = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto [largest, chosen] =
      ops::topk(ops::softmax(ops::cast(logits, wide), -1), experts_per_token_);
  const Tensor weights = normalize_ ? ops::div(largest, ops::sum(largest, {-1}, true)) : largest;
  return {(*experts_)({hidden, weights, chosen})[0]};
}

}  // namespace tessera::nn
