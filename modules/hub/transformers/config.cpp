module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
module tessera.hub;

import tessera.base;
import tessera.nn;
import tessera.models;
import tessera.checkpoint;
import tessera.exported;
import :quantized_folder;

// A model's config.json and generation_config.json, read and written.
namespace tessera::hub {

/// In folder_files.cpp: read_json_object() of a config.json as Python may write it.
ParsedJson read_config_json(const std::string& file, const JsonLimits& limits);

std::shared_ptr<nn::LanguageModel> make_model(const ModelShape& shape, double dropout) {
  return family_of(shape).build(sizes_of(shape), dropout);
}
namespace {

using Json = nlohmann::json;

constexpr JsonLimits limits = {.bytes = 16'000'000, .values = 1'000'000, .depth = 64};

Json parsed(ParsedJson json, const std::string& name) {
  if (!json.problem.empty()) {
    fail_input({.thing = name, .wrong = json.problem});
  }
  return std::move(json.value);
}

/// The family that a config.json names.
std::string family_name(const Json& json, const std::string& name) {
  const auto type = json.find("model_type");
  if (type == json.end() || type->is_null()) {
    fail_input({.thing = name,
                .wrong = "model_type is missing",
                .expected = "a family of models",
                .advice = "'tessera model list' shows them"});
  }
  const std::vector<std::string> known = models::model_families();
  const std::string text = type->is_string() ? type->get<std::string>() : "";
  if (text == exported::program_family_name) {
    return text;
  }
  if (std::ranges::find(known, text) == known.end()) {
    fail_input({.thing = name,
                .wrong = fmt::format("model_type {} is no family of models{}",
                                     shown(json_text(*type)), did_you_mean(text, known)),
                .advice = "if a plugin or a family file provides it, name it: --plugin PATH, or "
                          "plugins.paths; 'tessera model describe' shows the nearest families"});
  }
  return text;
}

/// The keys of config.json that an export passes on, with transformers' defaults, as a reader of
/// the export may have others.
std::string passed_on(const models::HubConfigFile& config, const models::ModelFamily& family,
                      const models::ModelSizes& sizes, const std::vector<std::int64_t>& bos,
                      const std::vector<std::int64_t>& eos) {
  Json others = parse_json(config.others());
  for (const models::HubKey& key : family.write(sizes)) {
    others.erase(key.key);
  }
  others.emplace("eos_token_id", eos.empty() ? Json() : Json(eos[0]));
  others.emplace("bos_token_id", bos.empty() ? Json() : Json(bos[0]));
  others.emplace("pad_token_id", nullptr);
  return json_text(others);
}

/// Keys of a file that is read for the first time.
enum class Keys { understood, as_trained };

ModelShape shape_of_json(const Json& json, const std::string& name, Keys keys = Keys::understood) {
  const std::string family_text = family_name(json, name);
  const models::ModelFamily& family = family_of({.family = family_text});
  models::HubConfigFile in(json_text(json), name);
  in.check_common(family.architecture(), readable_forms(family));
  const models::ModelSizes sizes = family.read(in);
  const std::string dtype = in.dtype();
  if (keys == Keys::understood) {
    in.finish();
  }
  in.throw_if_any();
  const models::SpecialTokens usual = family.special_tokens();
  const auto eos = in.tokens("eos_token_id", sizes.vocab, usual.eos);
  const auto bos = in.tokens("bos_token_id", sizes.vocab, usual.bos);
  // -1 is an old way to say that there is none. (nlohmann's -1 is equal to 2^64 - 1 too.)
  const Json pad = json.value("pad_token_id", Json());
  if (pad.is_number_unsigned() || pad != -1) {
    in.tokens("pad_token_id", sizes.vocab, -1);
  }
  in.throw_if_any();
  ModelShape shape = shape_of(family_text, sizes, name);
  shape.dtype = dtype;
  shape.eos = eos;
  shape.others = passed_on(in, family, sizes, bos, eos);
  return shape;
}

/// Where there is a generation_config.json, its eos alone counts, as in transformers.
void add_generation(ModelShape& shape, const Json& json, const std::string& name) {
  models::HubConfigFile in(json_text(json), name);
  shape.eos = in.tokens("eos_token_id", shape.vocab, -1);
  in.throw_if_any();
  shape.generation = json_text(json);
}

}  // namespace

ModelShape parse_hub_config(std::string_view text, const std::string& name) {
  return shape_of_json(parsed(parse_json_object(text, limits), name), name);
}

ModelShape read_model_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (is_checkpoint(folder.string())) {
    return stored_model(CheckpointReader(folder.string(), OpenFiles::when_read).meta(),
                        folder.string());
  }
  if (const std::string gguf = gguf_file(folder.string()); !gguf.empty()) {
    return parse_hub_config(gguf_config(*open_tensors(gguf).source), gguf);
  }
  if (exported::is_program(folder.string())) {
    return parse_hub_config(exported::program_config(folder.string()), folder.string());
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    fail_input({.thing = folder.string(),
                .wrong = "there is no such folder",
                .expected = "one with config.json and *.safetensors, a GGUF file, or a program of "
                            "torch.export (*.pt2)"});
  }
  const std::string file = (folder / "config.json").string();
  ModelShape shape = shape_of_json(parsed(read_config_json(file, limits), file), file);
  const std::filesystem::path generation = folder / "generation_config.json";
  if (std::filesystem::exists(generation, ignored)) {
    add_generation(shape,
                   parsed(read_json_object(generation.string(), limits), generation.string()),
                   generation.string());
  }
  return shape;
}

ModelShape stored_model(std::string_view meta, const std::string& checkpoint) {
  const ParsedJson json = parse_json_object(meta, limits);
  const auto model = json.value.find("model");
  if (!json.problem.empty() || model == json.value.end() || !model->is_object()) {
    fail_input({.thing = checkpoint, .wrong = "is not a checkpoint of 'tessera train'"});
  }
  Json words = *model;
  for (const char* key : {"eos_token_id", "bos_token_id"}) {
    words.emplace(key, nullptr);  // older checkpoints do not have them: there are no such tokens
  }
  ModelShape shape = shape_of_json(words, checkpoint, Keys::as_trained);
  if (const auto generation = json.value.find("generation");
      generation != json.value.end() && generation->is_object()) {
    add_generation(shape, *generation, checkpoint);
  }
  return shape;
}

std::string hub_config(const ModelShape& shape) {
  const models::ModelFamily& family = family_of(shape);
  Json json = shape.others.empty() ? Json{{"bos_token_id", nullptr},
                                          {"eos_token_id", nullptr},
                                          {"pad_token_id", nullptr},
                                          {"initializer_range", 0.02},
                                          {"use_cache", true}}
                                   : parse_json(shape.others);
  json.update(Json{{"architectures", {family.architecture()}}, {"model_type", shape.family}});
  for (const models::HubKey& key : family.write(sizes_of(shape))) {
    json[key.key] = parse_json(key.json);
  }
  if (!shape.dtype.empty()) {
    json.update(Json{{"dtype", shape.dtype}, {"torch_dtype", shape.dtype}});
  }
  return json_text(json, 2);
}

void add_end_tokens(ModelShape& shape, std::span<const std::int64_t> tokens) {
  for (const std::int64_t token : tokens) {
    if (std::ranges::find(shape.eos, token) == shape.eos.end()) {
      shape.eos.push_back(token);
    }
  }
  if (!tokens.empty()) {
    Json json = parse_json(generation_config(shape));
    json["eos_token_id"] = shape.eos.size() == 1 ? Json(shape.eos[0]) : Json(shape.eos);
    shape.generation = json_text(json);
  }
}

std::string generation_config(const ModelShape& shape) {
  if (!shape.generation.empty()) {
    return json_text(parse_json(shape.generation), 2);
  }
  const Json config = parse_json(hub_config(shape));
  Json json = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    json[key] = config[key];
  }
  return json_text(json, 2);
}

}  // namespace tessera::hub
