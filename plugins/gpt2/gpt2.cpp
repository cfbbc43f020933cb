#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

#include "gpt2.hpp"

namespace gpt2 {

using tessera::Tensor;
using tessera::Tensors;
namespace nn = tessera::nn;
namespace ops = tessera::ops;

namespace {

constexpr double initial_deviation = 0.02;

/// What is added to the residual stream starts smaller, so that its sum over all layers does not
/// grow with their number. Source: Radford et al., 2019, section 2.3.
void shrink_initially(nn::Module& projection, std::int64_t layers) {
  projection.parameter("weight")->initialization.standard_deviation /=
      std::sqrt(2 * static_cast<double>(layers));
}

}  // namespace

Mlp::Mlp(const Shape& shape) {
  wide_ = add_child<nn::Linear>("c_fc", shape.dim, shape.ffn_dim, true, initial_deviation);
  gelu_ = add_child<nn::Gelu>("act", true);
  const auto narrow =
      add_child<nn::Linear>("c_proj", shape.ffn_dim, shape.dim, true, initial_deviation);
  shrink_initially(*narrow, shape.layers);
  narrow_ = narrow;
}

std::string_view Mlp::kind() const { return "GPT2MLP"; }
std::vector<std::string> Mlp::input_names() const { return {"hidden_states"}; }

Tensors Mlp::forward(const Tensors& inputs) {
  return {(*narrow_)((*gelu_)((*wide_)(input(inputs, 0))))};
}

Block::Block(const Shape& shape) {
  attention_norm_ = add_child<nn::LayerNorm>("ln_1", shape.dim, shape.norm_eps);
  const auto attention = add_child<nn::Attention>(
      "attn", nn::AttentionOptions{.dim = shape.dim,
                                   .heads = shape.heads,
                                   .bias = true,
                                   .output_bias = true,
                                   .dropout = shape.dropout,
                                   .standard_deviation = initial_deviation});
  for (const auto& [name, child] : attention->children()) {
    if (name == "o_proj") {
      shrink_initially(*child, shape.layers);
    }
  }
  attention_ = attention;
  mlp_norm_ = add_child<nn::LayerNorm>("ln_2", shape.dim, shape.norm_eps);
  mlp_ = add_child<Mlp>("mlp", shape);
  if (shape.dropout > 0) {
    attention_dropout_ = add_child<nn::Dropout>("attn_dropout", shape.dropout);
    mlp_dropout_ = add_child<nn::Dropout>("mlp_dropout", shape.dropout);
  }
}

std::string_view Block::kind() const { return "GPT2Block"; }
std::vector<std::string> Block::input_names() const { return {"hidden_states", "documents"}; }

Tensors Block::forward(const Tensors& inputs) {
  const auto dropped = [](const nn::Child& dropout, Tensor hidden) {
    return dropout ? (*dropout)(hidden) : std::move(hidden);
  };
  const Tensor& hidden = input(inputs, 0);
  const Tensor& documents = inputs[1];
  const Tensor normed = (*attention_norm_)(hidden);
  const Tensor attended =
      documents ? attention_->by_name({{"hidden_states", normed}, {"documents", documents}})[0]
                : (*attention_)(normed);
  const Tensor middle = ops::add(hidden, dropped(attention_dropout_, attended));
  return {ops::add(middle, dropped(mlp_dropout_, (*mlp_)((*mlp_norm_)(middle))))};
}

Model::Model(const Shape& shape) {
  embedding_ = add_child<nn::Embedding>("wte", shape.vocab, shape.dim, initial_deviation);
  positions_ = add_child<nn::PositionEmbedding>(
      "wpe", shape.positions, shape.dim, nn::PositionEmbedding::Kind::learned, initial_deviation);
  if (shape.dropout > 0) {
    dropout_ = add_child<nn::Dropout>("drop", shape.dropout);
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    blocks_.push_back(add_child<Block>("h." + std::to_string(layer), shape));
  }
  norm_ = add_child<nn::LayerNorm>("ln_f", shape.dim, shape.norm_eps);
}

std::string_view Model::kind() const { return "GPT2Model"; }
std::vector<std::string> Model::input_names() const {
  return {"input_ids", "documents", "positions"};
}

Tensors Model::forward(const Tensors& inputs) {
  Tensor hidden = input(inputs, 0);
  if (pieces.begins()) {
    const Tensor embedded = (*embedding_)(hidden);
    const Tensor positions = cache == nullptr ? inputs[2] : cache->positions(hidden.size(1));
    hidden = (*positions_)(Tensors{embedded, positions})[0];
    hidden = dropout_ ? (*dropout_)(hidden) : hidden;
  }
  const Tensors others = inputs[1] ? Tensors{inputs[1]} : Tensors{};
  hidden = nn::run_blocks(nn::blocks_in(blocks_, pieces), std::move(hidden), recompute, others);
  return {pieces.ends() ? (*norm_)(hidden) : std::move(hidden)};
}

LanguageModel::LanguageModel(const Shape& shape)
    : nn::LanguageModel(shape.layers), layers_(shape.layers) {
  model_ = add_child<Model>("transformer", shape);
  const auto head =
      add_child<nn::Linear>("lm_head", shape.dim, shape.vocab, false, initial_deviation);
  if (shape.tie_embeddings) {
    head->set_parameter("weight", model_->embedding().parameter("weight"));
  }
  complete(head);
}

std::string_view LanguageModel::kind() const { return "GPT2LMHeadModel"; }

std::vector<std::vector<std::string>> LanguageModel::pieces() const {
  std::vector<std::vector<std::string>> all = {{"transformer.wte", "transformer.wpe"}};
  if (model_->has_dropout()) {
    all.front().emplace_back("transformer.drop");
  }
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    all.push_back({"transformer.h." + std::to_string(layer)});
  }
  all.push_back({"transformer.ln_f", "lm_head"});
  return all;
}

Tensor LanguageModel::hidden_states(const Tensors& inputs) {
  model_->pieces = selected();
  return (*model_)(Tensors{input(inputs, 0), inputs[1], inputs[2]})[0];
}

void LanguageModel::set_activation_checkpointing(bool enabled) { model_->recompute = enabled; }

void LanguageModel::set_cache(nn::KeyValueCache* cache) {
  nn::LanguageModel::set_cache(cache);
  model_->cache = cache;
}

}  // namespace gpt2
