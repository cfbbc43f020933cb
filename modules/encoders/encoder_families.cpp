// BERT, ModernBERT and ViT as transformers 5.24 has them.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.encoders;

import tessera.base;
import tessera.nn;
import tessera.models;
import tessera.hub;
import :encoder;
import :encoder_config;
import :encoder_families;

namespace tessera::encoders {
namespace {

using models::HubConfigFile;
using models::HubKey;

// The largest sizes of a config.json.
constexpr std::int64_t widest = std::int64_t{1} << 24;
constexpr std::int64_t most = 100000;
constexpr std::int64_t most_positions = std::int64_t{1} << 20;

constexpr std::string_view full = "full_attention";
constexpr std::string_view sliding = "sliding_attention";

/// Words of transformers and what they are here; an export writes the first that fits.
constexpr std::pair<std::string_view, nn::Activation> activations[] = {
    {"gelu", nn::Activation::gelu},
    {"gelu_new", nn::Activation::gelu_tanh},
    {"gelu_pytorch_tanh", nn::Activation::gelu_tanh},
    {"relu", nn::Activation::relu},
    {"silu", nn::Activation::silu}};

nn::Activation read_activation(HubConfigFile& config, const std::string& key) {
  const std::string text = config.text(key, "gelu");
  std::vector<std::string> known;
  for (const auto& [word, activation] : activations) {
    if (text == word) {
      return activation;
    }
    known.emplace_back(word);
  }
  config.problem(
      fmt::format("{} \"{}\" is not supported (only {})", key, shown(text), join_words(known)));
  return nn::Activation::gelu;
}

HubKey written(const char* key, nn::Activation activation) {
  std::string word;
  for (const auto& [text, known] : activations) {
    if (known == activation && word.empty()) {
      word = text;
    }
  }
  return {key, word.c_str()};
}

void read_sizes(HubConfigFile& config, EncoderShape& shape, std::int64_t layers,
                std::int64_t ffn_dim) {
  shape.dim = config.size("hidden_size", widest, 768);
  shape.layers = config.size("num_hidden_layers", most, layers);
  shape.heads = config.size("num_attention_heads", most, 12);
  shape.ffn_dim = config.size("intermediate_size", widest, ffn_dim);
  if (shape.dim % shape.heads != 0) {
    config.problem(
        fmt::format("num_attention_heads {} must divide hidden_size {}", shape.heads, shape.dim));
  }
}

void write_sizes(const EncoderShape& shape, std::vector<HubKey>& keys) {
  keys.insert(keys.end(), {{"hidden_size", shape.dim},
                           {"num_hidden_layers", shape.layers},
                           {"num_attention_heads", shape.heads},
                           {"intermediate_size", shape.ffn_dim}});
}

void read_tokens(HubConfigFile& config, EncoderShape& shape, std::int64_t vocab,
                 std::int64_t positions, std::int64_t padding) {
  shape.vocab = config.size("vocab_size", widest, vocab);
  shape.max_positions = config.size("max_position_embeddings", most_positions, positions);
  const std::vector<std::int64_t> ids = config.tokens("pad_token_id", shape.vocab, padding);
  if (ids.size() > 1) {
    config.problem("pad_token_id: expected one token");
  }
  shape.padding = ids.empty() ? -1 : ids[0];
  shape.tie_embeddings = config.flag("tie_word_embeddings", true);
}

void write_tokens(const EncoderShape& shape, std::vector<HubKey>& keys) {
  keys.insert(keys.end(), {{"vocab_size", shape.vocab},
                           {"max_position_embeddings", shape.max_positions},
                           {"tie_word_embeddings", shape.tie_embeddings},
                           shape.padding < 0 ? HubKey::raw("pad_token_id", "null")
                                             : HubKey("pad_token_id", shape.padding)});
}

/// The rates of BERT and ViT.
void read_dropout(HubConfigFile& config, EncoderShape& shape, double otherwise) {
  const double hidden = config.rate("hidden_dropout_prob", otherwise);
  shape.input_dropout = hidden;
  shape.attention_dropout = hidden;
  shape.ffn_dropout = hidden;
  shape.probability_dropout = config.rate("attention_probs_dropout_prob", otherwise);
}

void write_dropout(const EncoderShape& shape, std::vector<HubKey>& keys) {
  keys.insert(keys.end(), {{"hidden_dropout_prob", shape.ffn_dropout},
                           {"attention_probs_dropout_prob", shape.probability_dropout}});
}

void both_sides(HubConfigFile& config) {
  config.only("is_causal", "false", "a token attends to those on both sides");
  config.only("is_decoder", "false", "the model is an encoder");
  config.only("is_encoder_decoder", "false", "the model is an encoder");
  config.only("add_cross_attention", "false", "the model is an encoder");
}

void read_bert(HubConfigFile& config, EncoderShape& shape) {
  both_sides(config);
  read_sizes(config, shape, 12, 3072);
  read_tokens(config, shape, 30522, 512, 0);
  shape.token_types = config.size("type_vocab_size", most, 2);
  shape.norm_eps = config.positive("layer_norm_eps", 1e-12);
  shape.activation = read_activation(config, "hidden_act");
  read_dropout(config, shape, 0.1);
  shape.head_dropout = config.rate("classifier_dropout", shape.ffn_dropout);
  shape.pooler = shape.head == EncoderHead::none || shape.head == EncoderHead::classes;
  shape.transform = shape.head == EncoderHead::masked_tokens;
  if (shape.transform) {
    shape.transform_activation = shape.activation;
  }
  config.only("position_embedding_type", "\"absolute\"", "positions are added to tokens");
  const std::vector<std::string> ignored = {"gradient_checkpointing",
                                            "directionality",
                                            "pooler_fc_size",
                                            "pooler_num_attention_heads",
                                            "pooler_num_fc_layers",
                                            "pooler_size_per_head",
                                            "pooler_type",
                                            "output_past"};
  config.ignore(ignored);
}

std::vector<HubKey> write_bert(const EncoderShape& shape) {
  std::vector<HubKey> keys = {{"type_vocab_size", shape.token_types},
                              {"layer_norm_eps", shape.norm_eps},
                              written("hidden_act", shape.activation),
                              shape.head_dropout == shape.ffn_dropout
                                  ? HubKey::raw("classifier_dropout", "null")
                                  : HubKey("classifier_dropout", shape.head_dropout)};
  write_sizes(shape, keys);
  write_tokens(shape, keys);
  write_dropout(shape, keys);
  return keys;
}

/// Which layers of a ModernBERT have a window.
void read_local_layers(HubConfigFile& config, EncoderShape& shape) {
  const std::int64_t every = config.size("global_attn_every_n_layers", most, 3);
  const std::vector<std::string> types = config.texts("layer_types");
  if (!types.empty() && std::ssize(types) != shape.layers) {
    config.problem(fmt::format("layer_types: expected one for each of {} layers, got {}",
                               shape.layers, types.size()));
    return;
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const bool by_number = layer % every != 0;
    const std::string type = types.empty() ? std::string(by_number ? sliding : full)
                                           : types[static_cast<std::size_t>(layer)];
    if (type == sliding) {
      shape.local_layers.push_back(layer);
    } else if (type != full) {
      config.problem(fmt::format("layer_types: \"{}\" is not supported (only \"{}\" and \"{}\")",
                                 shown(type), full, sliding));
      return;
    }
  }
}

void read_modernbert(HubConfigFile& config, EncoderShape& shape) {
  both_sides(config);
  read_sizes(config, shape, 22, 1152);
  read_tokens(config, shape, 50368, 8192, 50283);
  shape.learned_positions = false;
  shape.norm_after = false;
  shape.first_norm = false;
  shape.final_norm = true;
  shape.norm_eps = config.positive("norm_eps", 1e-5);
  shape.norm_bias = config.flag("norm_bias", false);
  shape.bias = shape.output_bias = config.flag("attention_bias", false);
  shape.gated = true;
  shape.ffn_bias = config.flag("mlp_bias", false);
  shape.activation = read_activation(config, "hidden_activation");
  read_local_layers(config, shape);
  shape.window = config.size("local_attention", most_positions, 128);
  const std::vector<std::string> kinds = {"default"};
  const double global = config.positive("global_rope_theta", 160000);
  const double local = config.positive("local_rope_theta", 10000);
  shape.rope_theta = config.rope(kinds, global, std::string(full)).theta;
  shape.local_rope_theta = config.rope_theta_of(std::string(sliding), local);
  if (shape.dim / shape.heads % 2 != 0) {
    config.problem(fmt::format("a head of {} features cannot be rotated; it needs an even number",
                               shape.dim / shape.heads));
  }
  shape.input_dropout = config.rate("embedding_dropout", 0);
  shape.probability_dropout = shape.attention_dropout = config.rate("attention_dropout", 0);
  config.only("mlp_dropout", "0.0", "features within the feed-forward part are not dropped");
  shape.head_dropout = config.rate("classifier_dropout", 0);
  const std::string pooling = config.text("classifier_pooling", "cls");
  shape.pooling = pooling == "mean" ? Pooling::mean : Pooling::first;
  if (pooling != "cls" && pooling != "mean") {
    config.problem(
        fmt::format("classifier_pooling \"{}\" is not supported (only \"cls\" and "
                    "\"mean\")",
                    shown(pooling)));
  }
  shape.transform_bias = config.flag("classifier_bias", false);
  shape.transform_activation = read_activation(config, "classifier_activation");
  shape.token_bias = config.flag("decoder_bias", true);
  const std::vector<std::string> ignored = {
      "gradient_checkpointing",    "position_embedding_type",  "layer_norm_eps",
      "initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile",
      "repad_logits_with_grad",    "sparse_prediction",        "sparse_pred_ignore_index"};
  config.ignore(ignored);
}

std::vector<HubKey> write_modernbert(const EncoderShape& shape) {
  std::string types;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    types +=
        fmt::format("{}\"{}\"", types.empty() ? "" : ",", shape.is_local(layer) ? sliding : full);
  }
  const auto rope = [](double theta) {
    return fmt::format(R"({{"rope_theta": {}, "rope_type": "default"}})",
                       HubKey("rope_theta", theta).json);
  };
  std::vector<HubKey> keys = {
      {"norm_eps", shape.norm_eps},
      {"norm_bias", shape.norm_bias},
      {"attention_bias", shape.bias},
      {"mlp_bias", shape.ffn_bias},
      written("hidden_activation", shape.activation),
      HubKey::raw("layer_types", "[" + types + "]"),
      {"local_attention", shape.window},
      HubKey::raw("rope_parameters",
                  fmt::format(R"({{"{}": {}, "{}": {}}})", full, rope(shape.rope_theta), sliding,
                              rope(shape.local_rope_theta))),
      {"embedding_dropout", shape.input_dropout},
      {"attention_dropout", shape.attention_dropout},
      {"mlp_dropout", 0.0},
      {"classifier_dropout", shape.head_dropout},
      {"classifier_pooling", shape.pooling == Pooling::mean ? "mean" : "cls"},
      {"classifier_bias", shape.transform_bias},
      written("classifier_activation", shape.transform_activation),
      {"decoder_bias", shape.token_bias}};
  write_sizes(shape, keys);
  write_tokens(shape, keys);
  return keys;
}

void read_vit(HubConfigFile& config, EncoderShape& shape) {
  both_sides(config);
  read_sizes(config, shape, 12, 3072);
  shape.image_size = config.size("image_size", most, 224);
  shape.patch_size = config.size("patch_size", most, 16);
  shape.channels = config.size("num_channels", most, 3);
  if (shape.image_size % shape.patch_size != 0) {
    config.problem(
        fmt::format("patch_size {} must divide image_size {}", shape.patch_size, shape.image_size));
  }
  shape.norm_after = false;
  shape.final_norm = true;
  shape.norm_eps = config.positive("layer_norm_eps", 1e-12);
  shape.bias = config.flag("qkv_bias", true);
  shape.activation = read_activation(config, "hidden_act");
  read_dropout(config, shape, 0);
  shape.transform = false;
  shape.pooler = shape.head == EncoderHead::none;
  config.only("pooler_act", "\"tanh\"", "the pooler's result is its tanh");
  config.only("pooler_output_size", fmt::format("{}", shape.dim),
              "the pooler has as many features as the model");
  const std::vector<std::string> ignored = {"encoder_stride", "gradient_checkpointing"};
  config.ignore(ignored);
}

std::vector<HubKey> write_vit(const EncoderShape& shape) {
  std::vector<HubKey> keys = {
      {"image_size", shape.image_size}, {"patch_size", shape.patch_size},
      {"num_channels", shape.channels}, {"layer_norm_eps", shape.norm_eps},
      {"qkv_bias", shape.bias},         written("hidden_act", shape.activation)};
  write_sizes(shape, keys);
  write_dropout(shape, keys);
  return keys;
}

EncoderFamily bert() {
  return {.name = "bert",
          .base_class = "BertModel",
          .token_class = "BertForMaskedLM",
          .class_class = "BertForSequenceClassification",
          .token_classes_class = "BertForTokenClassification",
          .read = read_bert,
          .write = write_bert,
          .prefix = "bert.",
          .block = "bert.encoder.layer.",
          .heads = {"cls.", "classifier."},
          .modules = {{"model.embeddings.tokens", "bert.embeddings.word_embeddings"},
                      {"model.embeddings.types", "bert.embeddings.token_type_embeddings"},
                      {"model.embeddings.positions", "bert.embeddings.position_embeddings"},
                      {"model.embeddings.norm", "bert.embeddings.LayerNorm"},
                      {"pooler", "bert.pooler.dense"},
                      {"head.dense", "cls.predictions.transform.dense"},
                      {"head.norm", "cls.predictions.transform.LayerNorm"}},
          .block_modules = {{"self_attn.q_proj", "attention.self.query"},
                            {"self_attn.k_proj", "attention.self.key"},
                            {"self_attn.v_proj", "attention.self.value"},
                            {"self_attn.o_proj", "attention.output.dense"},
                            {"attention_norm", "attention.output.LayerNorm"},
                            {"mlp.up_proj", "intermediate.dense"},
                            {"mlp.down_proj", "output.dense"},
                            {"mlp_norm", "output.LayerNorm"}},
          .block_parts = {},
          .tensors = {{"lm_head.bias", "cls.predictions.bias"},
                      {"lm_head.bias", "cls.predictions.decoder.bias"},
                      {"lm_head.weight", "cls.predictions.decoder.weight"}},
          .ignored = {"**.position_ids", "cls.seq_relationship.*"}};
}

EncoderFamily modernbert() {
  return {
      .name = "modernbert",
      .base_class = "ModernBertModel",
      .token_class = "ModernBertForMaskedLM",
      .class_class = "ModernBertForSequenceClassification",
      .token_classes_class = "ModernBertForTokenClassification",
      .read = read_modernbert,
      .write = write_modernbert,
      .prefix = "model.",
      .block = "model.layers.",
      .heads = {"head.", "decoder.", "classifier."},
      .modules = {{"model.embeddings.tokens", "model.embeddings.tok_embeddings"},
                  {"model.norm", "model.final_norm"},
                  {"lm_head", "decoder"}},
      .block_modules = {{"self_attn.o_proj", "attn.Wo"},
                        {"attention_norm", "attn_norm"},
                        {"mlp.down_proj", "mlp.Wo"}},
      .block_parts = {{"attn.Wqkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                      {"mlp.Wi", {"mlp.gate_proj", "mlp.up_proj"}}},
      .tensors = {},
      .ignored = {}};
}

EncoderFamily vit() {
  return {.name = "vit",
          .base_class = "ViTModel",
          .token_class = "",
          .class_class = "ViTForImageClassification",
          .token_classes_class = "",
          .read = read_vit,
          .write = write_vit,
          .prefix = "vit.",
          .block = "vit.encoder.layer.",
          .heads = {"classifier."},
          .modules = {{"model.embeddings.patches", "vit.embeddings.patch_embeddings.projection"},
                      {"model.norm", "vit.layernorm"},
                      {"pooler", "vit.pooler.dense"}},
          .block_modules = {{"self_attn.q_proj", "attention.attention.query"},
                            {"self_attn.k_proj", "attention.attention.key"},
                            {"self_attn.v_proj", "attention.attention.value"},
                            {"self_attn.o_proj", "attention.output.dense"},
                            {"attention_norm", "layernorm_before"},
                            {"mlp.up_proj", "intermediate.dense"},
                            {"mlp.down_proj", "output.dense"},
                            {"mlp_norm", "layernorm_after"}},
          .block_parts = {},
          .tensors = {{"model.embeddings.class_token", "vit.embeddings.cls_token"},
                      {"model.embeddings.positions", "vit.embeddings.position_embeddings"}},
          .ignored = {}};
}

const std::vector<EncoderFamily>& families() {
  static const std::vector<EncoderFamily> all = {bert(), modernbert(), vit()};
  return all;
}

void add_module(std::vector<models::HubTensor>& all, const std::string& own,
                const std::string& stored, bool is_export) {
  for (const char* what : {".weight", ".bias"}) {
    all.push_back({.parameter = own + what, .tensor = stored + what});
  }
  if (!is_export && stored.ends_with("LayerNorm")) {  // as TensorFlow's BERT calls them
    all.push_back({.parameter = own + ".weight", .tensor = stored + ".gamma"});
    all.push_back({.parameter = own + ".bias", .tensor = stored + ".beta"});
  }
}

void add_block(std::vector<models::HubTensor>& all, const EncoderFamily& family, std::int64_t layer,
               bool is_export) {
  const std::string own = fmt::format("model.layers.{}.", layer);
  const std::string stored = fmt::format("{}{}.", family.block, layer);
  for (const StoredModule& module : family.block_modules) {
    add_module(all, own + std::string(module.own), stored + std::string(module.stored), is_export);
  }
  for (const StoredParts& parts : family.block_parts) {
    for (std::size_t i = 0; i < parts.own.size(); ++i) {
      for (const char* what : {".weight", ".bias"}) {
        all.push_back({.parameter = own + std::string(parts.own[i]) + what,
                       .tensor = stored + std::string(parts.stored) + what,
                       .part = static_cast<int>(i),
                       .parts = static_cast<int>(parts.own.size())});
      }
    }
  }
}

}  // namespace

const EncoderFamily* find_encoder_family(std::string_view name) {
  const auto found = std::ranges::find(families(), name, &EncoderFamily::name);
  return found == families().end() ? nullptr : &*found;
}

std::vector<std::string> encoder_families() {
  std::vector<std::string> names;
  for (const EncoderFamily& family : families()) {
    names.emplace_back(family.name);
  }
  return names;
}

hub::HubNames names_of(const EncoderConfig& config, bool is_export, bool new_head) {
  const EncoderFamily& family = *find_encoder_family(config.family);
  hub::HubNames names{.prefix = std::string(family.prefix)};
  names.without_prefix.assign(family.heads.begin(), family.heads.end());
  names.ignored.assign(family.ignored.begin(), family.ignored.end());
  const EncoderHead head = config.shape.head;
  for (const std::string_view beginning : family.heads) {
    if (new_head) {
      names.ignored.push_back(std::string(beginning) + "**");
    }
  }
  if (!config.shape.pooler) {
    names.ignored.push_back(names.prefix + "pooler.**");
    names.ignored.emplace_back("pooler.**");
  }
  for (const StoredModule& module : family.modules) {
    add_module(names.tensors, std::string(module.own), std::string(module.stored), is_export);
  }
  for (std::int64_t layer = 0; layer < config.shape.layers; ++layer) {
    add_block(names.tensors, family, layer, is_export);
  }
  for (const StoredModule& tensor : family.tensors) {
    names.tensors.push_back(
        {.parameter = std::string(tensor.own), .tensor = std::string(tensor.stored)});
  }
  if (is_export && head == EncoderHead::none) {  // a base model's names lack the prefix
    for (models::HubTensor& tensor : names.tensors) {
      if (tensor.tensor.starts_with(names.prefix)) {
        tensor.tensor.erase(0, names.prefix.size());
      }
    }
  }
  return names;
}

}  // namespace tessera::encoders
