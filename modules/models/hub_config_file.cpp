module;
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.models;

import tessera.base;
import :hub_config_state;

namespace tessera::models {

using Json = nlohmann::json;

/// Declared in hub_keys.cpp.
std::span<const std::string_view> irrelevant_hub_keys();

namespace {

// An export does not pass these on: it writes them itself, or has its weights under the usual
// names.
constexpr std::string_view not_passed_on[] = {
    "model_type",  "architectures",        "dtype",
    "torch_dtype", "transformers_version", "transformers_weights"};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

Json parsed_config(std::string_view json, const std::string& name) {
  ParsedJson parsed =
      parse_json_object(json, {.bytes = 16'000'000, .values = 1'000'000, .depth = 64});
  if (!parsed.problem.empty()) {
    fail_input({.thing = name, .wrong = parsed.problem});
  }
  return std::move(parsed.value);
}

}  // namespace

HubConfigFile::HubConfigFile(std::string_view json, std::string name)
    : HubConfig([&] {
        Json parsed = parsed_config(json, name);
        return std::make_shared<State>(std::move(parsed), std::move(name));
      }()) {
  for (const std::string_view key : irrelevant_hub_keys()) {
    state_->ignored.emplace(key);
  }
  state_->read.emplace("model_type");
}

void HubConfigFile::check_common(const std::string& architecture,
                                 std::span<const std::string> packed) {
  const Json& json = state_->json;
  only("is_causal", "true", "a token attends to earlier tokens only");
  only("is_encoder_decoder", "false", "the model is a decoder");
  only("add_cross_attention", "false", "the model is a decoder");
  check_folder(packed);
  only("loss_type", "\"ForCausalLM\"", "the loss is the cross entropy of the next token");
  if (present(json, "architectures")) {
    // The class in a folder that names several classes, or none, or another one. Early writers
    // differ in upper and lower case.
    const Json& classes = json["architectures"];
    const bool known = classes.is_array() && classes.size() == 1 && classes.front().is_string() &&
                       lower(classes.front().get<std::string>()) == lower(architecture);
    if (!known && !(classes.is_array() && classes.empty())) {
      state_->refuse("architectures", classes, fmt::format("[\"{}\"]", architecture),
                     "another model, or another head on it");
    }
  }
}

void HubConfigFile::check_folder(std::span<const std::string> packed) {
  const Json& json = state_->json;
  only("pruned_heads", "{}", "all heads are computed");
  if (present(json, "per_layer_config") && json["per_layer_config"].empty()) {
    state_->checked.insert("per_layer_config");  // otherwise a family reads it, or nobody does
  }
  // The form of packed weights is in the tensors; an export has none.
  const bool is_packed = present(json, "quantization_config") &&
                         json["quantization_config"].is_object() &&
                         std::ranges::any_of(packed, [&](const std::string& form) {
                           return json["quantization_config"].value("quant_method", Json()) == form;
                         });
  if (is_packed) {
    state_->read.insert("quantization_config");
  } else {
    only("quantization_config", "null", "weights are floating numbers");
  }
  only("compression_config", "null", "weights are floating numbers");
  only("configuration_files", "null", "transformers reads another file in the place of this one");
  only("transformers_weights", "\"model.safetensors\"", "transformers reads the weights there");
  if (!present(json, "auto_map") || !json["auto_map"].is_object()) {
    return;
  }
  for (const auto& [name, code] : json["auto_map"].items()) {
    if (name.starts_with("AutoModel")) {
      state_->refuse("auto_map", json["auto_map"], "null",
                     "the folder brings its own code for the model");
      return;
    }
  }
}

std::string HubConfigFile::architecture() {
  state_->read.insert("architectures");
  if (!present(state_->json, "architectures") || state_->json["architectures"].empty()) {
    return "";
  }
  const Json& classes = state_->json["architectures"];
  if (!classes.is_array() || classes.size() != 1 || !classes.front().is_string()) {
    problem(
        fmt::format("architectures: expected a list of one class, got {}", json_shown(classes)));
    return "";
  }
  return classes.front().get<std::string>();
}

std::vector<std::string> HubConfigFile::labels() {
  constexpr std::int64_t most = 100000;
  state_->read.insert("label2id");  // follows from id2label
  std::int64_t count = size("num_labels", most, 2);
  state_->read.insert("id2label");
  const Json& json = state_->json;
  std::vector<std::string> names;
  if (!present(json, "id2label")) {
    for (std::int64_t i = 0; i < count; ++i) {
      names.push_back(fmt::format("LABEL_{}", i));
    }
    return names;
  }
  const Json& given = json["id2label"];
  count = given.is_object() ? static_cast<std::int64_t>(given.size()) : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto found = given.find(fmt::format("{}", i));
    if (found == given.end() || !found->is_string()) {
      count = 0;
      break;
    }
    names.push_back(found->get<std::string>());
  }
  if (count == 0 || count > most) {
    problem(fmt::format("id2label: expected a name for each number from 0 on, got {}",
                        json_shown(given)));
    return {"LABEL_0", "LABEL_1"};
  }
  if (present(json, "num_labels") && json["num_labels"] != count) {
    problem(fmt::format("num_labels is {}, but id2label has {}; remove num_labels",
                        json_shown(json["num_labels"]), count));
  }
  return names;
}

std::vector<std::string> HubConfigFile::class_labels() {
  std::vector<std::string> names = labels();
  only("problem_type", "\"single_label_classification\"", "a row has one class");
  if (names.size() < 2) {
    problem("id2label: one label is a regression, which is not supported");
  }
  return names;
}

void HubConfigFile::throw_if_any() const { state_->throw_if_any(); }
const std::vector<std::string>& HubConfigFile::problems() const { return state_->problems; }

HubKeyUse HubConfigFile::use() const {
  HubKeyUse use;
  for (const std::string& key : state_->read) {
    (present(state_->json, key) ? use.read : use.absent).push_back(key);
  }
  for (const auto& [key, value] : state_->json.items()) {
    if (state_->read.contains(key)) {
      continue;
    }
    (state_->checked.contains(key)   ? use.fixed
     : state_->ignored.contains(key) ? use.ignored
                                     : use.unknown)
        .push_back(key);
  }
  return use;
}

void HubConfigFile::finish() {
  state_->check_names();
  state_->throw_if_any();
}

std::vector<std::int64_t> HubConfigFile::tokens(const std::string& key, std::int64_t vocab,
                                                std::int64_t otherwise) {
  std::vector<std::int64_t> ids;
  const auto found = state_->json.find(key);
  if (found == state_->json.end()) {
    return otherwise >= 0 && otherwise < vocab ? std::vector{otherwise} : ids;
  }
  const Json list = found->is_array()  ? *found
                    : found->is_null() ? Json::array()
                                       : Json::array({*found});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab) {
      problem(fmt::format("{}: expected null, a token id from 0 to {} or a list of them, got {}",
                          key, vocab - 1, json_shown(*found)));
      return {};
    }
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

std::string HubConfigFile::dtype() {
  std::string type;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!present(state_->json, key)) {
      continue;
    }
    const Json& value = state_->json[key];
    if (value != "float32" && value != "bfloat16" && value != "float16" && value != "float64") {
      problem(fmt::format("{} {} is not supported (only float32, bfloat16, float16 or float64)",
                          key, json_shown(value)));
    } else if (!type.empty() && value != type) {
      problem(fmt::format("dtype is \"{}\", but torch_dtype is {}; remove one of the two", type,
                          json_shown(value)));
    } else {
      type = value.get<std::string>();
    }
  }
  return type;
}

std::string HubConfigFile::others() const {
  Json json = state_->json;
  for (const std::string& key : state_->read) {
    json.erase(key);
  }
  for (const std::string_view key : not_passed_on) {
    json.erase(std::string(key));
  }
  return json_text(json);
}

HubKey::HubKey(std::string name, bool value)
    : key(std::move(name)), json(value ? "true" : "false") {}
HubKey::HubKey(std::string name, std::int64_t value)
    : key(std::move(name)), json(fmt::format("{}", value)) {}
HubKey::HubKey(std::string name, double value)
    : key(std::move(name)), json(json_text(Json(value))) {}
HubKey::HubKey(std::string name, const char* text)
    : key(std::move(name)), json(json_text(Json(text))) {}

HubKey HubKey::list(std::string name, std::span<const std::string> texts) {
  Json list = Json::array();
  for (const std::string& text : texts) {
    list.push_back(text);
  }
  return raw(std::move(name), json_text(list));
}

HubKey HubKey::raw(std::string name, std::string json) {
  HubKey result(std::move(name), false);
  result.json = std::move(json);
  return result;
}

std::vector<HubKey> label_keys(std::span<const std::string> labels) {
  Json names = Json::object();
  Json numbers = Json::object();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    names[fmt::format("{}", i)] = labels[i];
    numbers[labels[i]] = i;
  }
  return {HubKey::raw("id2label", json_text(names)), HubKey::raw("label2id", json_text(numbers))};
}

}  // namespace tessera::models
