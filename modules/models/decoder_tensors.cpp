// The tensors of decoders' folders: their names, forms and sizes.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import :decoder_family;
import :decoder_values;

namespace tessera::models {
namespace {

constexpr std::string_view layers_prefix = "model.layers.*";

std::string layer_name(std::int64_t layer) { return fmt::format("model.layers.{}.", layer); }

/// Where a folder has the experts of a layer: one by one, or as transformers 5 has them in memory.
/// `own`: the layer's name in the model; `stored`: in the folder.
void add_experts(std::vector<HubTensor>& all, const std::string& layer, const std::string& stored,
                 const HubExperts& names, bool gated) {
  const std::string own = layer + "mlp.experts.";
  all.push_back({.parameter = layer + "mlp.gate.weight", .tensor = stored + names.router});
  all.push_back({.parameter = layer + "mlp.shared_expert_gate.weight",
                 .tensor = stored + names.shared_gate + "weight"});
  if (!names.bias.empty()) {
    all.push_back({.parameter = layer + "mlp.choice_bias",
                   .tensor = stored + names.bias,
                   .row = names.bias_row});
  }
  const bool one_by_one = !(gated ? names.gate : names.up).empty();
  for (const auto& [matrix, name] :
       {std::pair{"gate_proj", &names.gate}, {"up_proj", &names.up}, {"down_proj", &names.down}}) {
    if (one_by_one && !name->empty()) {
      all.push_back({.parameter = own + matrix, .tensor = stored + *name, .stacked = true});
    }
    for (const char* what : {".weight", ".bias"}) {
      if (names.shared.empty()) {
        continue;  // under names of modules
      }
      const std::string shared = std::string(matrix) + what;
      all.push_back({.parameter = layer + "mlp.shared_expert." + shared,
                     .tensor = stored + names.shared + shared});
    }
  }
  all.push_back({.parameter = layer + "mlp.gate.bias", .tensor = stored + names.logit_bias});
  if (!gated) {
    return;
  }
  for (const auto& [matrix, part] : {std::pair{"gate_proj", 0}, {"up_proj", 1}}) {
    HubTensor half{.parameter = own + matrix,
                   .tensor = stored + names.gate_up,
                   .transposed = names.transposed,
                   .part = part,
                   .parts = 2,
                   .dim = 1,
                   .alternating = names.alternating};
    all.push_back(half);
    half.parameter += "_bias";
    half.tensor = stored + names.gate_up_bias;
    half.transposed = false;
    all.push_back(half);
  }
  all.push_back({.parameter = own + "down_proj",
                 .tensor = stored + names.all_down,
                 .transposed = names.transposed});
  all.push_back({.parameter = own + "down_proj_bias", .tensor = stored + names.down_bias});
}

/// A module's weight and bias under another name; where that has a `*`, a tensor for each entry of
/// the weight's first dim.
void rename(std::vector<HubTensor>& all, const std::string& own, const std::string& stored) {
  if (own == stored) {
    return;
  }
  const bool stacked = stored.find('*') != std::string::npos;
  all.push_back({.parameter = own + ".weight", .tensor = stored + ".weight", .stacked = stacked});
  if (!stacked) {
    all.push_back({.parameter = own + ".bias", .tensor = stored + ".bias"});
  }
}

/// Whether a layer's feed-forward part has the module: a dense one, or one with experts.
bool has_part(const nn::DecoderShape& shape, std::int64_t layer, const std::string& module) {
  const bool of_experts =
      module.starts_with("mlp.shared_expert.") || module.ends_with("_latent_proj");
  return shape.has_feed_forward(layer) && shape.has_experts(layer) == of_experts;
}

/// Whether a layer has what this module belongs to.
bool layer_has(const nn::DecoderShape& shape, std::int64_t layer, const std::string& module) {
  const nn::LayerKind kind = shape.layer_kind(layer);
  const std::string part = module.substr(0, module.find('.'));
  return part == "recurrent"   ? kind == nn::LayerKind::recurrent
         : part == "self_attn" ? kind == nn::LayerKind::attention
         : part == "mlp"       ? has_part(shape, layer, module)
                               : true;
}

bool is_outside_of_layers(const std::string& module) {
  return module.starts_with("model.") || module == "lm_head";
}

/// The name of a module in a folder, by names of DecoderTraits::hub_modules.
std::string stored_module(const std::map<std::string, std::string>& names, const std::string& own) {
  const auto found = names.find(own);
  return found == names.end() ? own : found->second;
}

/// That of a module in a layer, or of the layer with a dot.
std::string stored_module(const std::map<std::string, std::string>& names, std::int64_t layer,
                          const std::string& own) {
  std::string prefix = stored_module(names, std::string(layers_prefix));
  prefix.replace(prefix.find('*'), 1, std::to_string(layer));
  return own.empty() ? prefix + "." : fmt::format("{}.{}", prefix, stored_module(names, own));
}

}  // namespace

void add_fused(std::vector<HubTensor>& all, const std::string& layer, const std::string& stored,
               const FusedModule& fused, const nn::DecoderShape& shape) {
  const auto heads = static_cast<int>(shape.heads);
  const auto keys = static_cast<int>(shape.kv_heads);
  const bool recurrent = fused.parts[0].starts_with("recurrent.");
  const int groups = !fused.by_key_heads ? (fused.by_heads ? heads : 1)
                     : recurrent         ? static_cast<int>(shape.recurrent.key_heads)
                                         : keys;
  // How many equal parts of a group a module is.
  const auto extent = [&](const std::string& own) {
    return recurrent                   ? static_cast<int>(recurrent_rows(shape, own)) / groups
           : own == "self_attn.q_proj" ? heads / groups
           : own == "self_attn.k_proj" || own == "self_attn.v_proj" ? keys / groups
                                                                    : 1;
  };
  int parts = 0;
  int divisor = 0;
  for (const std::string& own : fused.parts) {
    parts += extent(own);
    divisor = std::gcd(divisor, extent(own));
  }
  divisor = std::max(divisor, 1);
  int part = 0;
  for (const std::string& own : fused.parts) {
    for (const char* what : {".weight", ".bias"}) {
      all.push_back({.parameter = layer + own + what,
                     .tensor = stored + fused.stored + what,
                     .part = part / divisor,
                     .parts = parts / divisor,
                     .parts_taken = extent(own) / divisor,
                     .groups = groups});
    }
    part += extent(own);
  }
}

std::vector<std::string> decoder_modules() {
  return {"model.embed_tokens",
          "model.norm",
          "lm_head",
          "input_layernorm",
          "post_attention_layernorm",
          "pre_feedforward_layernorm",
          "post_feedforward_layernorm",
          "self_attn.q_proj",
          "self_attn.k_proj",
          "self_attn.v_proj",
          "self_attn.o_proj",
          "self_attn.gate_proj",
          "self_attn.q_norm",
          "self_attn.k_norm",
          "self_attn.q_a_proj",
          "self_attn.q_a_layernorm",
          "self_attn.q_b_proj",
          "self_attn.kv_a_proj_with_mqa",
          "self_attn.kv_a_layernorm",
          "self_attn.kv_b_proj",
          "recurrent",
          "recurrent.q_proj",
          "recurrent.k_proj",
          "recurrent.v_proj",
          "recurrent.gate_proj",
          "recurrent.gate_a_proj",
          "recurrent.gate_b_proj",
          "recurrent.decay_proj",
          "recurrent.decay_a_proj",
          "recurrent.decay_b_proj",
          "recurrent.strength_proj",
          "recurrent.q_conv",
          "recurrent.k_conv",
          "recurrent.v_conv",
          "recurrent.conv",
          "recurrent.norm",
          "recurrent.o_proj",
          "mlp.gate_proj",
          "mlp.up_proj",
          "mlp.down_proj",
          "mlp.shared_expert.gate_proj",
          "mlp.shared_expert.up_proj",
          "mlp.shared_expert.down_proj",
          "mlp.fc1_latent_proj",
          "mlp.fc2_latent_proj",
          "model.embed_tokens_per_layer",
          "model.per_layer_model_projection",
          "model.per_layer_projection_norm",
          "per_layer_input_gate",
          "per_layer_projection",
          "post_per_layer_input_norm",
          "laurel.linear_left",
          "laurel.linear_right",
          "laurel.post_laurel_norm",
          "altup",
          "altup.correction_coefs",
          "altup.prediction_coefs",
          "altup.modality_router",
          "altup.router_norm"};
}

std::vector<HubTensor> hub_tensors(const DecoderTraits& traits, const nn::DecoderShape& shape,
                                   const DecoderVariant* variant) {
  std::vector<HubTensor> all;
  std::map<std::string, std::string> names = traits.hub_modules;
  if (variant != nullptr) {
    for (const auto& [own, stored] : variant->modules) {
      names[own] = stored;
    }
  }
  std::set<std::string> in_fused;
  for (const FusedModule& fused : traits.fused) {
    in_fused.insert(fused.parts.begin(), fused.parts.end());
  }
  for (std::int64_t layer = 0; layer < shape.layers + shape.further_layers; ++layer) {
    const std::string own = layer_name(layer);
    const std::string stored = stored_module(names, layer, "");
    for (const auto& [name, parameter] : traits.further.copies) {
      if (layer >= shape.layers) {
        all.push_back({.parameter = parameter, .tensor = stored + name, .copy = true});
      }
    }
    if (shape.has_experts(layer) && traits.experts) {
      add_experts(all, own, stored, *traits.experts, shape.gated);
    }
    const auto has = [&](const std::string& module) {
      return !is_outside_of_layers(module) && layer_has(shape, layer, module);
    };
    for (const FusedModule& fused : traits.fused) {
      if (has(fused.parts[0])) {
        add_fused(all, own, stored, fused, shape);
      }
    }
    for (const std::string& module : decoder_modules()) {
      if (has(module) && !in_fused.contains(module)) {
        rename(all, own + module, stored_module(names, layer, module));
      }
    }
    if (has("recurrent")) {
      for (const char* parameter : {"A_log", "dt_bias", "D"}) {
        all.push_back({.parameter = own + "recurrent.steps." + parameter,
                       .tensor = stored_module(names, layer, "recurrent") + "." + parameter});
      }
    }
  }
  for (const std::string& module : decoder_modules()) {
    if (is_outside_of_layers(module)) {
      rename(all, module, stored_module(names, module));
    }
  }
  return all;
}

std::vector<std::string> unused_tensors(const DecoderTraits& traits,
                                        const nn::DecoderShape& shape) {
  std::vector<std::string> patterns;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (shape.key_layer(layer) == layer) {
      continue;
    }
    for (const char* name : {"self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm"}) {
      patterns.push_back(stored_module(traits.hub_modules, layer, name) + ".**");
    }
  }
  return patterns;
}

std::vector<std::string> further_tensors(const DecoderTraits& traits,
                                         const nn::DecoderShape& shape) {
  std::vector<std::string> patterns = traits.further.tensors;
  for (std::int64_t layer = shape.further_layers;
       traits.further.after_layers && layer < most_further_layers; ++layer) {
    patterns.push_back(stored_module(traits.hub_modules, shape.layers + layer, "") + "**");
  }
  return patterns;
}

namespace {

/// Those of a recurrent layer.
void add_recurrent_sizes(const DecoderTraits& traits, const nn::DecoderShape& shape,
                         std::int64_t layer, std::vector<SizedTensor>& all) {
  const nn::RecurrentOptions options = shape.recurrence();
  const bool plain = options.rule == nn::RecurrentRule::convolution;
  const std::string own = layer_name(layer) + "recurrent.";
  for (const char* name : {"k_proj", "v_proj"}) {
    all.push_back({own + name + ".weight",
                   {plain ? hub_size(traits, "dim") : "the features of recurrent heads",
                    hub_size(traits, "dim")},
                   {recurrent_rows(shape, std::string("recurrent.") + name), shape.dim}});
  }
  const std::int64_t values = recurrent_rows(shape, "recurrent.v_proj");
  all.push_back(
      {own + (plain ? "conv.weight" : "v_conv.weight"),
       {"the features of recurrent heads", "1", hub_key(traits, "recurrent_kernel", "the kernel")},
       {values, 1, options.kernel}});
  if (!plain) {
    all.push_back({own + "steps.dt_bias",
                   {"the decays of recurrent heads"},
                   {options.value_heads * (options.gate_rank > 0 ? options.key_dim : 1)}});
  }
  if (options.gate_rank > 0) {
    all.push_back({own + "gate_b_proj.weight",
                   {"the features of recurrent heads", "those of their gates"},
                   {values, options.gate_rank}});
  }
}

/// Those of a layer with experts.
void add_expert_sizes(const DecoderTraits& traits, const nn::DecoderShape& shape,
                      std::int64_t layer, std::vector<SizedTensor>& all) {
  const std::string own = layer_name(layer) + "mlp.";
  const std::string dim = hub_size(traits, "dim");
  const std::string count = hub_key(traits, "experts", "num_local_experts");
  const std::string width = hub_key(traits, "expert_dim", "intermediate_size");
  const std::int64_t latent = shape.expert_form.latent_dim;
  all.push_back({own + "gate.weight", {count, dim}, {shape.experts, shape.dim}});
  all.push_back({own + (shape.gated ? "experts.gate_proj" : "experts.up_proj"),
                 {count, width, latent > 0 ? hub_key(traits, "expert_latent_dim", "") : dim},
                 {shape.experts, shape.expert_extent(), latent > 0 ? latent : shape.dim}});
  if (shape.shared_expert_dim > 0) {
    all.push_back(
        {own + (shape.gated ? "shared_expert.gate_proj.weight" : "shared_expert.up_proj.weight"),
         {hub_key(traits, "shared_expert_dim", ""), dim},
         {shape.shared_expert_dim, shape.dim}});
  }
}

}  // namespace

std::vector<SizedTensor> sized_tensors(const DecoderTraits& traits, const nn::DecoderShape& shape) {
  const std::string dim = hub_size(traits, "dim");
  const std::string heads = hub_size(traits, "heads");
  const std::int64_t attends = first_of_kind(shape, nn::LayerKind::attention);
  const std::string attention = layer_name(attends) + "self_attn.";
  std::vector<SizedTensor> all = {
      {"model.embed_tokens.weight", {hub_size(traits, "vocab"), dim}, {shape.vocab, shape.dim}}};
  if (const std::int64_t layer = first_of_kind(shape, nn::LayerKind::recurrent); layer >= 0) {
    add_recurrent_sizes(traits, shape, layer, all);
  }
  if (attends < 0) {
    // no layer has such sizes
  } else if (shape.latent_rank > 0) {
    all.push_back({attention + "kv_b_proj.weight",
                   {heads + " times the features of a head", hub_key(traits, "latent_rank", "")},
                   {shape.heads * (shape.plain_dim + shape.value_extent()), shape.latent_rank}});
  } else {
    all.push_back({attention + "q_proj.weight",
                   {heads + " times head_dim", dim},
                   {shape.heads * shape.head_extent(attends), shape.dim}});
    const std::string keys = hub_size(traits, "kv_heads");
    all.push_back({attention + "k_proj.weight",
                   {(keys.empty() ? heads : keys) + " times head_dim", dim},
                   {shape.key_heads(attends) * shape.head_extent(attends), shape.dim}});
  }
  if (shape.layer_embedding_dim > 0) {
    all.push_back(
        {"model.embed_tokens_per_layer.weight",
         {hub_key(traits, "layer_embedding_vocab", ""),
          hub_size(traits, "layers") + " times " + hub_key(traits, "layer_embedding_dim", "")},
         {shape.layer_embedding_vocab, shape.layers * shape.layer_embedding_dim}});
  }
  if (shape.residual_rank > 0) {
    all.push_back({layer_name(0) + "laurel.linear_left.weight",
                   {hub_key(traits, "residual_rank", ""), dim},
                   {shape.residual_rank, shape.dim}});
  }
  if (shape.streams.count > 1) {
    all.push_back({layer_name(0) + "altup.modality_router.weight",
                   {hub_key(traits, "streams", ""), dim},
                   {shape.streams.count, shape.dim}});
  }
  for (std::int64_t layer = 0; layer < shape.layers && shape.global_heads.head_dim > 0; ++layer) {
    if (!shape.has_window(layer)) {
      all.push_back({layer_name(layer) + "self_attn.q_proj.weight",
                     {heads + " times " + hub_key(traits, "global_head_dim", ""), dim},
                     {shape.heads * shape.head_extent(layer), shape.dim}});
      break;
    }
  }
  if (const std::int64_t dense = first_layer(shape, false); dense >= 0) {
    all.push_back(
        {layer_name(dense) + (shape.gated ? "mlp.gate_proj.weight" : "mlp.up_proj.weight"),
         {hub_size(traits, "ffn_dim"), dim},
         {shape.ffn_extent(), shape.dim}});
  }
  if (const std::int64_t sparse = first_layer(shape, true); sparse >= 0) {
    add_expert_sizes(traits, shape, sparse, all);
  }
  return all;
}

}  // namespace tessera::models
