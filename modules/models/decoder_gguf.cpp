// Decoders in GGUF files: names of tensors, and the fields that all decoders have.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.nn;
import :gguf_form;
import :decoder_family;
import :decoder_values;
import :values;

namespace tessera::models {
namespace {

/// Names of modules in files, by the model's; those of a layer without its name.
std::map<std::string, std::string> usual_names(const nn::DecoderShape& shape) {
  // Where what the parts of a layer give is normalized, the norm before the feed-forward part has
  // another name in the model.
  const char* const after_attention = shape.norm_results ? "post_attention_norm" : "ffn_norm";
  return {{"model.embed_tokens", "token_embd"},
          {"model.norm", "output_norm"},
          {"lm_head", "output"},
          {"input_layernorm", "attn_norm"},
          {"post_attention_layernorm", after_attention},
          {"pre_feedforward_layernorm", shape.norm_results ? "ffn_norm" : ""},
          {"post_feedforward_layernorm", "post_ffw_norm"},
          {"self_attn.q_proj", "attn_q"},
          {"self_attn.k_proj", "attn_k"},
          {"self_attn.v_proj", "attn_v"},
          {"self_attn.o_proj", "attn_output"},
          {"self_attn.q_norm", "attn_q_norm"},
          {"self_attn.k_norm", "attn_k_norm"},
          {"self_attn.q_a_proj", "attn_q_a"},
          {"self_attn.q_a_layernorm", "attn_q_a_norm"},
          {"self_attn.q_b_proj", "attn_q_b"},
          {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
          {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
          {"self_attn.kv_b_proj", "attn_kv_b"},
          {"recurrent.conv", "shortconv.conv"},
          {"recurrent.norm", "ssm_norm"},
          {"recurrent.o_proj", "ssm_out"},
          {"model.embed_tokens_per_layer", "per_layer_token_embd"},
          {"model.per_layer_model_projection", "per_layer_model_proj"},
          {"model.per_layer_projection_norm", "per_layer_proj_norm"},
          {"per_layer_input_gate", "inp_gate"},
          {"per_layer_projection", "proj"},
          {"post_per_layer_input_norm", "post_norm"},
          {"mlp.gate_proj", "ffn_gate"},
          {"mlp.up_proj", "ffn_up"},
          {"mlp.down_proj", "ffn_down"},
          {"mlp.gate", "ffn_gate_inp"},
          {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
          {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
          {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
          {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"}};
}

constexpr std::string_view choice_bias = "mlp.choice_bias";

/// Parameters of a layer that are no weight or bias of a module.
constexpr std::pair<const char*, const char*> single[] = {
    {"self_attn.sinks", "attn_sinks.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"recurrent.steps.A_log", "ssm_a"},
    {"recurrent.steps.D", "ssm_d"},
    {"recurrent.steps.dt_bias", "ssm_dt.bias"},
    {choice_bias.data(), "exp_probs_b.bias"},
    {"mlp.experts.gate_proj", "ffn_gate_exps.weight"},
    {"mlp.experts.up_proj", "ffn_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.experts.gate_proj_bias", "ffn_gate_exps.bias"},
    {"mlp.experts.up_proj_bias", "ffn_up_exps.bias"},
    {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"}};
constexpr std::pair<const char*, const char*> split[] = {
    {"self_attn.kv_b_proj.keys", "attn_k_b.weight"},
    {"self_attn.kv_b_proj.values", "attn_v_b.weight"}};

void add_module(std::vector<HubTensor>& all, const std::string& own, const std::string& stored) {
  for (const char* what : {".weight", ".bias"}) {
    all.push_back({.parameter = own + what, .tensor = stored + what});
  }
}

}  // namespace

std::vector<HubTensor> gguf_tensors(const DecoderTraits& traits, const nn::DecoderShape& shape,
                                    const DecoderVariant* variant) {
  const DecoderGguf& gguf = traits.gguf;
  std::map<std::string, std::string> names = usual_names(shape);
  for (const auto& [own, stored] : gguf.modules) {
    names[own] = stored;
  }
  if (variant != nullptr && gguf.form_modules.contains(variant->name)) {
    for (const auto& [own, stored] : gguf.form_modules.at(variant->name)) {
      names[own] = stored;
    }
  }
  for (const FusedModule& fused : gguf.fused) {
    for (const std::string& part : fused.parts) {
      names.erase(part);
    }
  }
  if (gguf.form.split_latents) {
    names.erase("self_attn.kv_b_proj");
  }
  std::vector<HubTensor> all;
  const auto is_outer = [](const std::string& own) {
    return own.starts_with("model.") || own == "lm_head";
  };
  for (const auto& [own, stored] : names) {
    if (is_outer(own) && !stored.empty()) {
      add_module(all, own, stored);
    }
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string own = fmt::format("model.layers.{}.", layer);
    const std::string stored = fmt::format("blk.{}.", layer);
    for (const auto& [module, name] : names) {
      if (!is_outer(module) && !name.empty()) {
        add_module(all, own + module, stored + name);
      }
    }
    for (const auto& [parameter, name] : single) {
      const bool row =
          std::string_view(parameter) == choice_bias && traits.experts && traits.experts->bias_row;
      all.push_back({.parameter = own + parameter, .tensor = stored + name, .row = row});
    }
    for (const auto& [parameter, name] : split) {
      if (gguf.form.split_latents) {
        all.push_back({.parameter = own + parameter, .tensor = stored + name});
      }
    }
    for (const FusedModule& fused : gguf.fused) {
      add_fused(all, own, stored, fused, shape);
    }
  }
  return all;
}

GgufForm gguf_form(const DecoderTraits& traits) {
  GgufForm form = traits.gguf.form;
  if (form.architecture.empty()) {
    return form;
  }
  const bool rms = traits.shape.norm_kind == nn::NormOptions::Kind::rms;
  const std::pair<const char*, const char*> sizes[] = {
      {"embedding_length", "dim"},
      {"block_count", "layers"},
      {"context_length", "max_positions"},
      {"attention.head_count", "heads"},
      {"attention.head_count_kv", "kv_heads"},
      {"feed_forward_length", "ffn_dim"},
      {rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", "norm_eps"}};
  const auto of_layers = [&](const std::string& field) {
    return std::ranges::any_of(form.layers.kinds,
                               [&](const GgufLayerKind& kind) { return kind.field == field; });
  };
  for (const auto& [field, size] : sizes) {
    const std::string key = hub_size(traits, size);
    if (!key.empty() && !form.keys.contains(field) && !form.fields.contains(field) &&
        !form.written.contains(field) && !form.windowed.contains(field) && !of_layers(field)) {
      form.sizes.emplace(field, key);
    }
  }
  form.vocab_key = hub_size(traits, "vocab");
  form.tied_key = hub_size(traits, "tie_embeddings");
  form.head_dim_key = hub_size(traits, "head_dim");
  const auto theta = traits.hub_sizes.find("rope_theta");
  form.rope_key = theta == traits.hub_sizes.end() ? "rope_theta" : theta->second;
  form.partial_rope = traits.partial_rope && !form.pairs;
  form.rope = traits.rope_keys;
  form.pair_factors = traits.rope_by_pairs;
  form.nested_global = traits.nested_global;
  return form;
}

namespace {

/// The property that sets this member; null: there is none.
template <class Value>
const DecoderProperty* property_setting(const DecoderTraits& traits,
                                        Value& (*member)(nn::DecoderShape&)) {
  nn::DecoderShape shape;
  for (const DecoderProperty& property : traits.properties) {
    for (const DecoderMember& one : property.members) {
      const auto* const field = std::get_if<DecoderField<Value>>(&one);
      if (field != nullptr && &(*field)(shape) == &member(shape)) {
        return &property;
      }
    }
  }
  return nullptr;
}

/// How many first layers have no experts.
std::int64_t first_without_experts(const nn::DecoderShape& shape) {
  std::int64_t layer = 0;
  while (layer < shape.layers && !shape.has_experts(layer)) {
    ++layer;
  }
  return layer;
}

/// The same model in the words of another family. Error (input): that has no word for a value.
ModelSizes in_words_of(const std::string& family, const ModelSizes& sizes,
                       const nn::DecoderShape& shape) {
  const DecoderTraits traits = decoder_traits(family);
  const DecoderFamily other(traits);
  const std::vector<ModelKey> keys = other.keys();
  ModelSizes same{
      .vocab = sizes.vocab, .max_positions = sizes.max_positions, .values = ModelValues(keys)};
  std::vector<std::string> without;
  for (const auto& [key, value] : sizes.values.all()) {
    if (same.values.all().contains(key)) {
      same.values.set(key, value);
    } else {
      without.push_back(key);
    }
  }
  if (const auto* const first =
          property_setting(traits, decoder_field<&nn::DecoderShape::first_dense_layers>)) {
    same.values.set(first->key, first_without_experts(shape));
    std::erase(without, "dense_layers");
  }
  const nn::DecoderShape of_other = other.shape_of(same);
  bool fits = without.empty();
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    fits = fits && shape.has_experts(layer) == of_other.has_experts(layer);
  }
  if (!fits) {
    without.emplace_back("dense_layers");
    fail_input(
        {.thing = "a GGUF file",
         .wrong = fmt::format("it has this model as one of the family {}, which has no words "
                              "for model.{}",
                              family, join_words(without)),
         .advice = "export it for transformers"});
  }
  return same;
}

}  // namespace

ModelSizes gguf_sizes(const DecoderTraits& traits, ModelSizes sizes,
                      const nn::DecoderShape& shape) {
  using Shape = nn::DecoderShape;
  const auto set = [&](const DecoderProperty* property, const ModelValue& value) {
    if (property != nullptr) {
      sizes.values.set(property->key, value);
    }
  };
  if (const auto* const adjusted =
          property_setting(traits, decoder_field<&Shape::ffn_rule, &nn::WidthRule::gated_share>)) {
    sizes.values.set("ffn_dim", shape.ffn_extent());
    set(adjusted, false);
    for (const DecoderProperty* const of_rule :
         {property_setting(traits, decoder_field<&Shape::ffn_rule, &nn::WidthRule::factor>),
          property_setting(traits, decoder_field<&Shape::ffn_rule, &nn::WidthRule::multiple>)}) {
      set(of_rule, of_rule == nullptr ? ModelValue() : of_rule->initial);
    }
  }
  if (shape.latent_rank > 0) {
    set(property_setting(traits, decoder_field<&Shape::value_dim>), shape.value_extent());
  }
  if (shape.experts == 0) {  // without influence
    set(property_setting(traits, decoder_field<&Shape::expert_dim>),
        sizes.values.integer("ffn_dim"));
    set(property_setting(traits, decoder_field<&Shape::experts_per_token>), std::int64_t{0});
  }
  if (shape.last_expert_layer == shape.layers - 1) {
    set(property_setting(traits, decoder_field<&Shape::last_expert_layer>), std::int64_t{-1});
  }
  using Recurrent = nn::RecurrentOptions;
  const nn::RecurrentOptions recurrent = shape.recurrence();
  if (recurrent.value_heads > 0) {
    set(property_setting(traits, decoder_field<&Shape::recurrent, &Recurrent::value_dim>),
        recurrent.value_extent());
    const std::int64_t features = recurrent.value_heads * recurrent.value_extent();
    if (shape.dim > 0 && features % shape.dim == 0) {  // without influence beside the other
      set(property_setting(traits, decoder_field<&Shape::recurrent, &Recurrent::expand>),
          features / shape.dim);
    }
  }
  const std::string& family = traits.gguf.form.same_as;
  return family.empty() ? sizes : in_words_of(family, sizes, shape);
}

}  // namespace tessera::models
