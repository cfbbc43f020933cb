// config.json of encoders.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.encoders;

import tessera.base;
import tessera.models;
import :encoder;
import :encoder_config;
import :encoder_families;

namespace tessera::encoders {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits limits = {.bytes = 16'000'000, .values = 1'000'000, .depth = 64};

const EncoderFamily& family_of(const Json& json, const std::string& name) {
  const auto type = json.find("model_type");
  const std::string text = type != json.end() && type->is_string() ? type->get<std::string>() : "";
  if (const EncoderFamily* family = find_encoder_family(text)) {
    return *family;
  }
  const std::vector<std::string> known = encoder_families();
  fail_input({.thing = name,
              .wrong = type == json.end()
                           ? std::string("model_type is missing")
                           : fmt::format("model_type {} is no family of encoders{}",
                                         shown(json_text(*type)), did_you_mean(text, known)),
              .expected = join_words(known)});
}

/// What the folder's class makes of hidden states.
EncoderHead head_of(models::HubConfigFile& config, const EncoderFamily& family) {
  const std::string own = config.architecture();
  const std::pair<std::string_view, EncoderHead> classes[] = {
      {family.base_class, EncoderHead::none},
      {family.token_class, EncoderHead::masked_tokens},
      {family.class_class, EncoderHead::classes},
      {family.token_classes_class, EncoderHead::token_classes}};
  std::vector<std::string> known;
  for (const auto& [name, head] : classes) {
    if (!name.empty() && own == name) {
      return head;
    }
    if (!name.empty()) {
      known.emplace_back(name);
    }
  }
  if (!own.empty()) {
    config.problem(fmt::format("architectures \"{}\" is not supported (only {})", shown(own),
                               join_words(known)));
  }
  return EncoderHead::none;
}

std::string_view class_of(const EncoderFamily& family, EncoderHead head) {
  switch (head) {
    case EncoderHead::none:
      return family.base_class;
    case EncoderHead::masked_tokens:
      return family.token_class;
    case EncoderHead::classes:
      return family.class_class;
    case EncoderHead::token_classes:
      return family.token_classes_class;
  }
  fail("encoder: no such head");
}

/// The keys of config.json that go out again as they are.
std::string passed_on(const models::HubConfigFile& config, const EncoderFamily& family,
                      const EncoderShape& shape) {
  Json others = parse_json(config.others());
  for (const models::HubKey& key : family.write(shape)) {
    others.erase(key.key);
  }
  return json_text(others);
}

}  // namespace

EncoderConfig parse_encoder_config(std::string_view text, const std::string& name) {
  const ParsedJson parsed = parse_json_object(text, limits);
  if (!parsed.problem.empty()) {
    fail_input({.thing = name, .wrong = parsed.problem});
  }
  const EncoderFamily& family = family_of(parsed.value, name);
  models::HubConfigFile in(text, name);
  EncoderConfig config{.family = std::string(family.name)};
  in.check_folder();
  config.shape.head = head_of(in, family);
  config.labels = config.shape.tells_classes() ? in.class_labels() : in.labels();
  if (config.shape.tells_classes()) {
    config.shape.classes = std::ssize(config.labels);
  }
  family.read(in, config.shape);
  config.dtype = in.dtype();
  in.finish();
  config.others = passed_on(in, family, config.shape);
  return config;
}

std::optional<EncoderConfig> stored_encoder(std::string_view meta, const std::string& checkpoint) {
  const ParsedJson parsed = parse_json_object(meta, limits);
  const auto model = parsed.value.find("model");
  if (!parsed.problem.empty() || model == parsed.value.end() || !model->is_object()) {
    return std::nullopt;
  }
  const auto type = model->find("model_type");
  const std::string name =
      type != model->end() && type->is_string() ? type->get<std::string>() : "";
  return find_encoder_family(name) == nullptr
             ? std::nullopt
             : std::optional(parse_encoder_config(json_text(*model), checkpoint));
}

std::string encoder_config_text(const EncoderConfig& config) {
  const EncoderFamily* family = find_encoder_family(config.family);
  if (family == nullptr) {
    fail_input({.thing = "encoder",
                .wrong = fmt::format("there is no family '{}'", shown(config.family)),
                .expected = join_words(encoder_families())});
  }
  Json json = config.others.empty() ? Json::object() : parse_json(config.others);
  json["architectures"] = {std::string(class_of(*family, config.shape.head))};
  json["model_type"] = config.family;
  for (const models::HubKey& key : family->write(config.shape)) {
    json[key.key] = parse_json(key.json);
  }
  if (config.shape.tells_classes()) {
    for (const models::HubKey& key : models::label_keys(config.labels)) {
      json[key.key] = parse_json(key.json);
    }
  }
  if (!config.dtype.empty()) {
    json["dtype"] = config.dtype;
    json["torch_dtype"] = config.dtype;
  }
  return json_text(json, 2);
}

EncoderConfig with_labels(EncoderConfig config, std::vector<std::string> labels, EncoderHead head) {
  const std::set<std::string> different(labels.begin(), labels.end());
  if (labels.size() < 2 || different.size() < labels.size()) {
    fail_input(
        {.thing = "encoder",
         .wrong = "a classifier needs labels that differ",
         .expected = "at least 2",
         .got = fmt::format("{} labels, {} of them different", labels.size(), different.size())});
  }
  const EncoderFamily& family = *find_encoder_family(config.family);
  if (class_of(family, head).empty()) {
    fail_input({.thing = "encoder",
                .wrong = fmt::format("transformers has no class of the family '{}' that tells "
                                     "the classes of tokens",
                                     config.family),
                .advice = "set train.objective = \"classification\""});
  }
  config.labels = std::move(labels);
  config.shape.classes = std::ssize(config.labels);
  config.shape.head = head;
  // What depends on the head follows from the family.
  models::HubConfigFile again(encoder_config_text(config), config.family);
  EncoderShape shape{.head = head};
  family.read(again, shape);
  again.throw_if_any();
  shape.classes = config.shape.classes;
  shape.dtype = config.shape.dtype;
  shape.standard_deviation = config.shape.standard_deviation;
  config.shape = shape;
  return config;
}

}  // namespace tessera::encoders
