module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import :classifier_folder;

namespace tessera::hub {

/// In folder_files.cpp: read_json_object() of a config.json as Python may write it.
ParsedJson read_config_json(const std::string& file, const JsonLimits& limits);

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr JsonLimits limits = {.bytes = 16'000'000, .values = 1'000'000, .depth = 64};
constexpr const char* score = "score.";

/// Whether a config.json names the class of its family that tells classes.
bool tells_classes(const Json& json, const std::string& classifier) {
  const auto classes = json.find("architectures");
  return classes != json.end() && classes->is_array() && classes->size() == 1 &&
         classes->front().is_string() && !classifier.empty() && classes->front() == classifier;
}

/// The class of a family for classes; empty: there is none, or no such family.
std::string classifier_of(const Json& json) {
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string()) {
    return "";
  }
  const std::string name = type->get<std::string>();
  const std::vector<std::string> known = models::model_families();
  return std::ranges::find(known, name) == known.end() ? ""
                                                       : models::model_family(name).classifier();
}

/// The folder's labels, which must be those of one class of a row.
std::vector<std::string> labels_of(const Json& json, const std::string& name) {
  models::HubConfigFile in(json_text(json), name);
  std::vector<std::string> labels = in.class_labels();
  in.throw_if_any();
  return labels;
}

ClassifierConfig config_of(Json json, const std::string& name) {
  ClassifierConfig config;
  const std::string classifier = classifier_of(json);
  if (tells_classes(json, classifier)) {
    config.labels = labels_of(json, name);
    json["architectures"] = {
        models::model_family(json["model_type"].get<std::string>()).architecture()};
  }
  // They say what the head is, and not what the decoder computes.
  for (const char* const key : {"id2label", "label2id", "num_labels", "problem_type"}) {
    json.erase(key);
  }
  config.model = parse_hub_config(json_text(json), name);
  static_cast<void>(config.architecture(name));
  const Json others = parse_json(config.model.others);
  if (const auto padding = others.find("pad_token_id");
      padding != others.end() && padding->is_number_integer()) {
    config.padding = padding->get<std::int64_t>();
  }
  return config;
}

HubNames names_of_classifier(const ClassifierConfig& config, bool new_head) {
  HubNames names = names_of(family_of(config.model), sizes_of(config.model));
  names.without_prefix.emplace_back(score);
  names.ignored.emplace_back("lm_head.**");
  if (new_head) {
    names.ignored.push_back(std::string(score) + "**");
  }
  // A head for tokens may have another name.
  std::erase_if(names.tensors, [&](const models::HubTensor& tensor) {
    const bool head = tensor.parameter.starts_with("lm_head.");
    if (head) {
      names.ignored.push_back(tensor.tensor);
    }
    return head;
  });
  return names;
}

}  // namespace

std::string ClassifierConfig::architecture(const std::string& name) const {
  std::string own = family_of(model).classifier();
  if (own.empty()) {
    fail_input({.thing = name,
                .wrong = fmt::format("transformers has no class of the family '{}' that tells "
                                     "classes",
                                     model.family),
                .advice = "train an encoder, or another family of decoders"});
  }
  return own;
}

ClassifierConfig parse_classifier_config(std::string_view text, const std::string& name) {
  ParsedJson json = parse_json_object(text, limits);
  if (!json.problem.empty()) {
    fail_input({.thing = name, .wrong = json.problem});
  }
  return config_of(std::move(json.value), name);
}

std::optional<ClassifierConfig> stored_classifier(std::string_view meta,
                                                  const std::string& checkpoint) {
  const ParsedJson json = parse_json_object(meta, limits);
  const auto model = json.value.find("model");
  if (!json.problem.empty() || model == json.value.end() || !model->is_object() ||
      !tells_classes(*model, classifier_of(*model))) {
    return std::nullopt;
  }
  return config_of(*model, checkpoint);
}

std::string classifier_config_text(const ClassifierConfig& config) {
  Json json = parse_json(hub_config(config.model));
  json["architectures"] = {config.architecture("config.json")};
  for (const models::HubKey& key : models::label_keys(config.labels)) {
    json[key.key] = parse_json(key.json);
  }
  json["pad_token_id"] = config.padding < 0 ? Json() : Json(config.padding);
  return json_text(json, 2);
}

ClassifierFolder::ClassifierFolder(const std::string& folder) : folder_(folder) {
  const std::string file = (fs::path(folder) / "config.json").string();
  ParsedJson json = read_config_json(file, limits);
  if (!json.problem.empty()) {
    fail_input({.thing = file, .wrong = json.problem});
  }
  config_ = config_of(std::move(json.value), file);
  check_model_files(folder, "", folder);
  tensors_ = std::make_shared<const SafetensorsFolder>(folder);
  const std::int64_t layers = family_of(config_.model).layers(sizes_of(config_.model)).count;
  if (layers > std::ssize(tensors_->tensors())) {
    fail_input({.thing = file,
                .wrong = fmt::format("it has {} layers, but the folder has {} tensors", layers,
                                     tensors_->tensors().size())});
  }
  new_head_ = config_.labels.empty();
}

void ClassifierFolder::set_labels(std::vector<std::string> labels) {
  const std::set<std::string> different(labels.begin(), labels.end());
  if (labels.size() < 2 || different.size() < labels.size()) {
    fail_input(
        {.thing = folder_,
         .wrong = "a classifier needs labels that differ",
         .expected = "at least 2",
         .got = fmt::format("{} labels, {} of them different", labels.size(), different.size())});
  }
  config_.labels = std::move(labels);
  new_head_ = true;
}

StateDict ClassifierFolder::state_of(nn::DecoderClassifier& model) const {
  StateDict state;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    if (!new_head_ || !name.starts_with(score)) {
      state.tensors.emplace(name, parameter->value);
    }
  }
  return state;
}

std::shared_ptr<nn::DecoderClassifier> ClassifierFolder::build() const {
  auto model =
      family_of(config_.model)
          .build_classifier(sizes_of(config_.model), std::ssize(config_.labels), config_.padding);
  check_weights(HubWeights(*tensors_, names_of_classifier(config_, new_head_)), state_of(*model));
  return model;
}

void ClassifierFolder::load(nn::DecoderClassifier& model) const {
  StateDict state = state_of(model);
  load_weights(HubWeights(*tensors_, names_of_classifier(config_, new_head_)), state);
}

void write_classifier_folder(const ClassifierConfig& config, const TensorSource& parameters,
                             const std::string& folder, const std::string& prefix) {
  const HubExport named(parameters, prefix, names_of_classifier(config, false));
  fs::create_directories(folder);
  ExportOptions options;
  if (!config.model.dtype.empty()) {
    options.dtype = type_named(config.model.dtype);
  }
  export_weights(named, folder, options);
  write_text((fs::path(folder) / "config.json").string(), classifier_config_text(config));
}

}  // namespace tessera::hub
