#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

#include "mixtral.hpp"

namespace mixtral {

using namespace tessera;

namespace {

/// The ranks that share the experts, and how many there are.
struct Owners {
  std::optional<ops::GroupArgument> group = std::nullopt;
  std::int64_t count = 1;
};

/// An expert's matrix by the place of its dims: [experts, out, in] as grouped_mm takes it.
Tensor transposed(const Tensor& weights) { return ops::transpose(weights, 1, 2); }

/// SwiGLU of the rows of each expert, [rows, dim]; `expected` rows have one.
Tensor feed_forward(const Tensor& rows, std::span<const Tensor> weights, const Tensor& counts,
                    std::int64_t expected) {
  const Tensor gate = ops::grouped_mm(rows, transposed(weights[0]), counts, expected);
  const Tensor up = ops::grouped_mm(rows, transposed(weights[1]), counts, expected);
  return ops::grouped_mm(ops::swiglu(gate, up), transposed(weights[2]), counts, expected);
}

/// Routing where the rows and the experts are on different ranks: counts [experts] says how many
/// of this rank's rows, which are in the order of the experts, each expert gets.
Tensor exchanged(const Tensor& rows, std::span<const Tensor> weights, const Tensor& counts,
                 std::int64_t per_token, const Owners& owners) {
  const std::int64_t sent = rows.size(0);
  if (!owners.group) {
    return feed_forward(rows, weights, counts, sent);
  }
  const std::int64_t own = counts.size(0) / owners.count;
  const Tensor sends = ops::view(counts, {owners.count, own});
  const Tensor receives =
      ops::all_to_all(ops::view(counts, {1, counts.size(0)}), 0, owners.count, 1, *owners.group);
  // A token has at most one row for each of a rank's experts.
  const std::int64_t most = sent / per_token * std::min(per_token, own) * owners.count;
  const Tensor arrived =
      ops::all_to_all_rows(rows, sends, receives, most, ops::RowOrder::by_group, *owners.group);
  const Tensor computed = feed_forward(arrived, weights, ops::sum(receives, {0}), sent);
  return ops::all_to_all_rows(computed, receives, sends, sent, ops::RowOrder::by_rank,
                              *owners.group);
}

/// Local tensors: hidden states, weights and numbers of the tokens' experts, the three matrices.
Tensors mixture(std::span<const Tensor> in, std::int64_t experts, const Owners& owners) {
  const Tensor& hidden = in[0];
  const std::int64_t dim = hidden.size(-1);
  const std::int64_t per_token = in[2].size(-1);
  const std::int64_t tokens = hidden.numel() / dim;
  const Tensor chosen = ops::reshape(in[2], {tokens * per_token});
  const Tensor order = ops::argsort(chosen);  // stable: an expert's tokens stay in their order
  const Tensor place = ops::argsort(order);
  const Tensor counts = ops::scatter_add(zeros({experts}, DType::i64, hidden.device()), chosen,
                                         ops::ones_like(chosen), 0);
  const Tensor token = ops::floor_divide(
      order, full({}, static_cast<double>(per_token), DType::i64, hidden.device()));
  const Tensor rows = ops::index_select(ops::reshape(hidden, {tokens, dim}), token, 0);
  const Tensor computed = exchanged(rows, in.subspan(3), counts, per_token, owners);
  const Tensor by_token =
      ops::view(ops::index_select(computed, place, 0), {tokens, per_token, dim});
  const Tensor weights = ops::cast(ops::reshape(in[1], {tokens, per_token, 1}), hidden.dtype());
  return {ops::reshape(ops::sum(ops::mul(by_token, weights), {1}), hidden.shape())};
}

/// The axis of several ranks that splits the experts; -1: none. Errors: another split.
int expert_axis(const Experts& layer, const Tensor& hidden, const Layout& weights) {
  const Layout tokens = hidden.layout();
  if (tokens.has_partial() || tokens.shards(hidden.dims() - 1)) {
    fail_input({.thing = "module '" + layer.name() + "'",
                .wrong = "each rank needs whole hidden states",
                .got = to_string(*hidden.spec()),
                .advice = "use PrepareModuleInput"});
  }
  int found = -1;
  for (int axis = 0; axis < weights.ndim(); ++axis) {
    if (weights.mesh().axis_size(axis) == 1 || weights.placement(axis).is_replicate()) {
      continue;
    }
    if (found >= 0 || !weights.placement(axis).is_shard(0) || !tokens.placement(axis).is_shard()) {
      fail_input({.thing = "module '" + layer.name() + "'",
                  .wrong = "its experts must be split by ExpertParallel only, on one axis, along "
                           "which the batch is split",
                  .got = "weights " + to_string(weights) + ", tokens " + to_string(tokens)});
    }
    found = axis;
  }
  return found;
}

/// The layout of the weights' gradient: ranks with other tokens have other terms of it.
Layout gradient_of(const Layout& weights, const Layout& tokens) {
  Layout gradient = weights;
  for (int axis = 0; axis < weights.ndim(); ++axis) {
    if (weights.placement(axis).is_replicate() && tokens.placement(axis).is_shard()) {
      gradient = gradient.with_placement(axis, Partial());
    }
  }
  return gradient;
}

}  // namespace

Experts::Experts(const Shape& shape) {
  const nn::DecoderShape& llama = shape.llama;
  const auto add = [&](const char* name, std::int64_t out, std::int64_t in) {
    const nn::Initialization normal{nn::Initialization::Kind::normal, llama.standard_deviation};
    add_parameter(
        name, std::make_shared<nn::Parameter>(Dims{shape.experts, out, in}, llama.dtype, normal));
  };
  add("gate_proj", llama.ffn_dim, llama.dim);
  add("up_proj", llama.ffn_dim, llama.dim);
  add("down_proj", llama.dim, llama.ffn_dim);
}

std::string_view Experts::kind() const { return "MixtralExperts"; }
std::vector<std::string> Experts::input_names() const {
  return {"hidden_states", "weights", "experts"};
}

std::vector<nn::LayerSplit> Experts::splits() const {
  nn::LayerSplit split{.name = "experts"};
  for (const auto& [name, parameter] : parameters()) {
    split.parameters.push_back({parameter, Shard(0)});
  }
  return {split};
}

Tensors Experts::forward(const Tensors& inputs) {
  std::vector<Tensor> in = {input(inputs, 0), input(inputs, 1), input(inputs, 2)};
  for (const auto& [name, parameter] : parameters()) {
    in.push_back(parameter->use());
  }
  const std::int64_t experts = in[3].size(0);
  if (!in[0].is_distributed()) {
    return mixture(in, experts, {});
  }
  const Layout tokens = in[0].layout();
  const Layout weights = in[3].layout();
  const DeviceMesh& mesh = tokens.mesh();
  const int axis = expert_axis(*this, in[0], weights);
  Owners owners;
  if (axis >= 0) {
    if (!shards_evenly(in[0].shape(), tokens)) {
      fail_input({.thing = "module '" + name() + "'",
                  .wrong = "the ranks have different numbers of tokens",
                  .got = to_string(*in[0].spec()),
                  .advice = "use a batch that the axes divide"});
    }
    owners = {ops::GroupArgument::of(mesh.group(axis, current_rank())), mesh.axis_size(axis)};
  }
  const Layout gradient = gradient_of(weights, tokens);
  LocalMapOptions options;
  options.in = {tokens, tokens, tokens, weights, weights, weights};
  options.in_gradients = {tokens, tokens, tokens, gradient, gradient, gradient};
  options.out = {tokens};
  options.out_shapes = {in[0].shape()};
  return local_map([&](std::span<const Tensor> locals) { return mixture(locals, experts, owners); },
                   in, options);
}

SparseMixture::SparseMixture(const Shape& shape) : experts_per_token_(shape.experts_per_token) {
  gate_ = add_child<nn::Linear>("gate", shape.llama.dim, shape.experts, false,
                                shape.llama.standard_deviation, shape.llama.dtype);
  experts_ = add_child<Experts>("experts", shape);
}

std::string_view SparseMixture::kind() const { return "MixtralSparseMixture"; }
std::vector<std::string> SparseMixture::input_names() const { return {"hidden_states"}; }

Tensors SparseMixture::forward(const Tensors& inputs) {
  const Tensor& hidden = input(inputs, 0);
  const Tensor logits = (*gate_)(hidden);
  const DType wide = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto [weights, chosen] =
      ops::topk(ops::softmax(ops::cast(logits, wide), -1), experts_per_token_);
  const Tensor scaled = ops::div(weights, ops::sum(weights, {-1}, true));
  return {(*experts_)({hidden, scaled, chosen})[0]};
}

LanguageModel::LanguageModel(const Shape& shape) : nn::DecoderLM(shape.llama) {
  nn::replace_modules(*this, "model.layers.*.mlp", [&](const std::shared_ptr<nn::Module>&) {
    return std::make_shared<SparseMixture>(shape);
  });
}

std::string_view LanguageModel::kind() const { return "MixtralForCausalLM"; }

}  // namespace mixtral
