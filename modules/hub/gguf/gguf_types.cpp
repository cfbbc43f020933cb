module;
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
module tessera.hub;

import tessera.base;
import tessera.tensor;
import :gguf_types;

namespace tessera::hub {
namespace {

constexpr std::int64_t layers_of_70b = 80;
constexpr std::int64_t experts_of_mixtral = 8;
constexpr std::string_view layer_prefix = "blk.";

/// Parts of names of tensors that llama-quantize never rounds.
constexpr std::string_view small_parts[] = {
    "_norm.weight", "ffn_gate_inp.weight",  "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d",   "shortconv.conv.weight"};

constexpr std::string_view value_parts[] = {".attn_v.weight", ".attn_qkv.weight",
                                            ".attn_kv_b.weight"};

/// Whether the i-th of so many layers has more bits.
bool needs_more(std::int64_t i, std::int64_t count) {
  return i < count / 8 || i >= 7 * count / 8 || (i - count / 8) % 3 == 2;
}

/// Rows that are no whole blocks have a type with smaller ones, or F16.
std::string fitting(const std::string& type, std::int64_t row) {
  constexpr std::int64_t block = 32;
  constexpr std::int64_t super_block = 256;
  if (WrittenTypes::dtype(type) != DType::f32 || type == "F32") {
    return type;
  }
  const std::map<std::string, std::string> smaller = {
      {"Q4_K", "Q5_0"}, {"Q5_K", "Q8_0"}, {"Q6_K", "Q8_0"}};
  const auto found = smaller.find(type);
  if (found != smaller.end() && row % super_block == 0) {
    return type;
  }
  return row % block != 0 ? "F16" : found == smaller.end() ? type : found->second;
}

}  // namespace

WrittenTypes::WrittenTypes(std::string type, GgufModelSizes sizes)
    : type_(std::move(type)), sizes_(std::move(sizes)) {}

DType WrittenTypes::dtype(const std::string& type) {
  return type == "F16" ? DType::f16 : type == "BF16" ? DType::bf16 : DType::f32;
}

std::string WrittenTypes::of(const std::string& name, const Dims& shape) const {
  // Biases of experts are a matrix, the norms of heads may be one; one of one row is a vector.
  const bool is_small = std::ranges::any_of(
      small_parts, [&](std::string_view part) { return name.find(part) != std::string::npos; });
  const bool rounded = shape.size() >= 2 && shape[0] > 1 && name.ends_with(".weight") && !is_small;
  if (!rounded) {
    return "F32";
  }
  const bool four_bits = type_ == "Q4_0" || type_ == "Q4_K_M";
  const std::string type =
      four_bits && name == (sizes_.has_head ? "output.weight" : "token_embd.weight")
          ? (sizes_.architecture == "falcon" ? "Q8_0" : "Q6_K")
      : type_ == "Q4_K_M" ? of_layer(name)
                          : type_;
  return fitting(type, shape[shape.size() - 1]);
}

std::string WrittenTypes::of_layer(const std::string& name) const {
  const bool few_experts = sizes_.experts == experts_of_mixtral;
  const auto is = [&](std::string_view module) { return name.find(module) != std::string::npos; };
  if (few_experts && (is(".attn_v.weight") || is(".attn_k.weight"))) {
    return "Q8_0";
  }
  if (few_experts && is(".attn_output.weight")) {
    return "Q5_K";
  }
  const bool values = makes_values(name);
  if (!values && !is(".ffn_down")) {
    return "Q4_K";
  }
  const std::int64_t layer = layer_of(name);
  const std::int64_t layers = sizes_.layers;
  if (!values && sizes_.architecture == "falcon") {
    return layer < layers / 16 ? "Q6_K" : needs_more(layer, layers) ? "Q5_K" : "Q4_K";
  }
  // Those of values are counted.
  const auto at = std::ranges::find(sizes_.value_layers, layer);
  const bool more =
      values ? needs_more(at - sizes_.value_layers.begin(), std::ssize(sizes_.value_layers))
             : needs_more(layer, layers);
  const bool wide_values = layers == layers_of_70b && sizes_.shares_keys &&
                           (sizes_.architecture == "llama" || sizes_.architecture == "qwen2");
  return more ? "Q6_K" : values && wide_values ? "Q5_K" : "Q4_K";
}

bool WrittenTypes::makes_values(const std::string& name) {
  return std::ranges::any_of(
      value_parts, [&](std::string_view part) { return name.find(part) != std::string::npos; });
}

std::int64_t WrittenTypes::layer_of(const std::string& name) {
  return std::strtoll(name.c_str() + std::min(layer_prefix.size(), name.size()), nullptr, 10);
}

}  // namespace tessera::hub
