module;
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

void LlamaShape::check() const {
  const std::pair<const char*, std::int64_t> extents[] = {
      {"vocab", vocab}, {"dim", dim},           {"layers", layers},
      {"heads", heads}, {"kv_heads", kv_heads}, {"ffn_dim", ffn_dim}};
  for (const auto& [key, value] : extents) {
    if (value < 1) {
      fail_input(fmt::format("model.{}: must be at least 1 (got {})", key, value));
    }
  }
  if (heads % kv_heads != 0) {
    fail_input(
        fmt::format("model.kv_heads: must divide heads ({} heads, {} kv_heads)", heads, kv_heads));
  }
  if (head_dim <= 0 && dim % heads != 0) {
    fail_input(fmt::format(
        "model.heads: must divide dim ({} heads, dim {}), unless head_dim is given", heads, dim));
  }
  if (head_extent() % 2 != 0) {
    fail_input(fmt::format(
        "model.heads: the rotary embedding needs an even head_dim (got {} = dim / heads)",
        head_extent()));
  }
}

LlamaMLP::LlamaMLP(const LlamaShape& shape) {
  gate_ = add_child<Linear>("gate_proj", shape.dim, shape.ffn_dim, false, shape.standard_deviation,
                            shape.dtype);
  up_ = add_child<Linear>("up_proj", shape.dim, shape.ffn_dim, false, shape.standard_deviation,
                          shape.dtype);
  down_ = add_child<Linear>("down_proj", shape.ffn_dim, shape.dim, false, shape.standard_deviation,
                            shape.dtype);
}

std::string_view LlamaMLP::kind() const { return "LlamaMLP"; }
std::vector<std::string> LlamaMLP::input_names() const { return {"hidden_states"}; }

Tensors LlamaMLP::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  return {(*down_)(ops::swiglu((*gate_)(x), (*up_)(x)))};
}

LlamaBlock::LlamaBlock(const LlamaShape& shape) {
  attention_ = add_child<Attention>("self_attn",
                                    AttentionOptions{.dim = shape.dim,
                                                     .heads = shape.heads,
                                                     .kv_heads = shape.kv_heads,
                                                     .head_dim = shape.head_dim,
                                                     .rope_theta = shape.rope_theta,
                                                     .standard_deviation = shape.standard_deviation,
                                                     .dtype = shape.dtype});
  mlp_ = add_child<LlamaMLP>("mlp", shape);
  input_norm_ = add_child<RMSNorm>("input_layernorm", shape.dim, shape.norm_eps, shape.dtype);
  post_norm_ =
      add_child<RMSNorm>("post_attention_layernorm", shape.dim, shape.norm_eps, shape.dtype);
  if (shape.dropout > 0) {
    attention_dropout_ = add_child<Dropout>("attention_dropout", shape.dropout);
    mlp_dropout_ = add_child<Dropout>("mlp_dropout", shape.dropout);
  }
}

std::string_view LlamaBlock::kind() const { return "LlamaBlock"; }
std::vector<std::string> LlamaBlock::input_names() const { return {"hidden_states"}; }

Tensors LlamaBlock::forward(const Tensors& inputs) {
  const auto dropped = [](const Child& dropout, Tensor x) {
    return dropout ? (*dropout)(x) : std::move(x);
  };
  const Tensor& x = input(inputs, 0);
  const Tensor middle = ops::add(x, dropped(attention_dropout_, (*attention_)((*input_norm_)(x))));
  return {ops::add(middle, dropped(mlp_dropout_, (*mlp_)((*post_norm_)(middle))))};
}

LlamaModel::LlamaModel(const LlamaShape& shape) {
  embedding_ = add_child<Embedding>("embed_tokens", shape.vocab, shape.dim,
                                    shape.standard_deviation, shape.dtype);
  // "layers.0": the dot is part of the path, as in a list of modules.
  for (int i = 0; i < shape.layers; ++i) {
    blocks_.push_back(add_child<LlamaBlock>(fmt::format("layers.{}", i), shape));
  }
  norm_ = add_child<RMSNorm>("norm", shape.dim, shape.norm_eps, shape.dtype);
}

std::string_view LlamaModel::kind() const { return "LlamaModel"; }
std::vector<std::string> LlamaModel::input_names() const { return {"input_ids"}; }

Tensors LlamaModel::forward(const Tensors& inputs) {
  return {(*norm_)(run_blocks(blocks_, (*embedding_)(input(inputs, 0)), activation_checkpointing))};
}

LlamaForCausalLM::LlamaForCausalLM(const LlamaShape& shape)
    : LanguageModel(shape.layers), shape_(shape) {
  shape.check();
  model_ = add_child<LlamaModel>("model", shape);
  const AddedChild<Linear> head = add_child<Linear>("lm_head", shape.dim, shape.vocab, false,
                                                    shape.standard_deviation, shape.dtype);
  if (shape.tie_embeddings) {
    head->set_parameter("weight", model_->embedding().parameter("weight"));
  }
  head_ = head;
  complete();
}

std::string_view LlamaForCausalLM::kind() const { return "LlamaForCausalLM"; }

Tensors LlamaForCausalLM::forward(const Tensors& inputs) {
  return {(*head_)((*model_)(input(inputs, 0)))};
}

void LlamaForCausalLM::set_activation_checkpointing(bool enabled) {
  model_->activation_checkpointing = enabled;
}

}  // namespace tessera::nn
