module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.models;
import tessera.checkpoint;
import :gguf_config;
import :gguf_names;
import :gguf_reading;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;

const TensorInfo& info(const GgufReading& reading, const std::string& name) {
  const TensorInfo& found = reading.file.info(name);
  if (found.shape.size() != 2) {
    fail_input(
        {.thing = reading.file.path(), .wrong = fmt::format("tensor '{}' is not a matrix", name)});
  }
  return found;
}

/// `name`: after the layer's. Layers may differ in which parts they have.
bool has_in_some_layer(const GgufReading& reading, const std::string& name) {
  for (std::int64_t layer = 0; layer < reading.shown_layers(); ++layer) {
    if (reading.file.contains(fmt::format("blk.{}.{}", layer, name))) {
      return true;
    }
  }
  return false;
}

/// Whether a layer has the first tensor and not the second.
bool lacks_in_some_layer(const GgufReading& reading, const std::string& first,
                         const std::string& second) {
  for (std::int64_t layer = 0; layer < reading.shown_layers(); ++layer) {
    if (reading.file.contains(fmt::format("blk.{}.{}", layer, first)) &&
        !reading.file.contains(fmt::format("blk.{}.{}", layer, second))) {
      return true;
    }
  }
  return false;
}

void read_sizes(GgufReading& reading) {
  for (const auto& [field, key] : reading.form.sizes) {
    if (!reading.form.wide_shared.empty() && field == "feed_forward_length") {
      continue;  // see read_widths
    }
    const std::optional<double> value = reading.fields.number(reading.own(field));
    const bool is_count = !std::string_view(field).ends_with("_epsilon");
    if (!value && std::string_view(field) == "attention.head_count_kv") {
      continue;  // as many as heads
    }
    if (!value) {
      reading.fields.wrong(reading.own(field), "is missing");
    }
    if (is_count && (*value < 0 || *value > 0x1p40 || *value != std::floor(*value))) {
      reading.fields.wrong(reading.own(field), fmt::format("it is not a size (got {})", *value));
    }
    // No size is 0.
    reading.config[key] = !is_count     ? Json(*value)
                          : *value == 0 ? Json()
                                        : Json(static_cast<std::int64_t>(*value));
  }
  if (const auto heads = reading.form.sizes.find("attention.head_count_kv");
      heads != reading.form.sizes.end()) {
    reading.config.emplace(heads->second,
                           Json(reading.config[reading.form.sizes.at("attention.head_count")]));
  }
  if (const auto base = reading.fields.number(reading.own("rope.freq_base"));
      base && reading.form.rope) {
    reading.config[reading.form.rope_key] = *base;
  }
}

bool is_one_key(const std::vector<GgufTerm>& terms) {
  return terms.size() == 1 && terms[0].keys.size() == 1;
}

/// Layers that predict further tokens are counted among the others, and config.json has no key.
void leave_out_further_layers(GgufReading& reading) {
  const double further = reading.fields.number(reading.own(further_field)).value_or(0);
  const std::int64_t layers = reading.size_of("block_count");
  if (further == 0) {
    return;
  }
  if (further < 0 || further != std::floor(further) || further >= static_cast<double>(layers)) {
    reading.fields.wrong(reading.own(further_field),
                         fmt::format("it is not a number of layers (got {})", further));
  }
  reading.further_layers = static_cast<std::int64_t>(further);
  reading.config[reading.form.sizes.at("block_count")] = layers - reading.further_layers;
}

/// Finds the key of a sum or a product that is not known yet.
void read_term(GgufReading& reading, const std::string& field, const GgufTerm& term) {
  // Files may lack the number of tokens, which a tensor has.
  const std::optional<double> value = field == vocab_field
                                          ? reading.config.at(reading.form.vocab_key).get<double>()
                                          : reading.fields.number(reading.own(field));
  if (!value) {
    return;
  }
  double rest = *value;
  std::string unknown;
  for (const std::string& key : term.keys) {
    const auto known = reading.config.find(key);
    if (known != reading.config.end() && !known->is_string()) {
      const double number = known->is_number() ? known->get<double>() : 0;
      rest = !term.product ? rest - number : number == 0 ? -1 : rest / number;
    } else if (unknown.empty()) {
      unknown = key;
    } else {
      reading.fields.wrong(reading.own(field),
                           fmt::format("the file says neither {} nor {}", unknown, key));
    }
  }
  const double none = term.product ? 1 : 0;
  if (unknown.empty() ? rest != none : rest < 0 || rest > 0x1p40 || rest != std::floor(rest)) {
    reading.fields.wrong(reading.own(field), fmt::format("it is not the {} of {} (got {})",
                                                         term.product ? "product" : "sum",
                                                         join_words(term.keys), *value));
  }
  if (!unknown.empty()) {
    reading.config[unknown] = static_cast<std::int64_t>(rest);
  }
}

void read_keys(GgufReading& reading) {
  for (const auto& [field, key] : reading.form.keys) {
    if (key == local_theta || key.starts_with(rope_part) || !is_one_key(terms_of(key))) {
      continue;
    }
    if (const Json* const value = reading.fields.find(reading.own(field))) {
      // A window of 0 is none.
      reading.config[key] =
          field == window_field && *value == 0 ? Json() : FileFields::plain(*value);
    }
  }
  for (const auto& [field, text] : reading.form.keys) {
    if (const std::vector<GgufTerm> terms = terms_of(text); !is_one_key(terms)) {
      for (const GgufTerm& term : terms) {
        read_term(reading, field, term);
      }
    }
  }
  for (const auto& [field, key] : reading.form.every) {
    const double period = reading.fields.number(reading.own(field)).value_or(0);
    if (period < 0 || period > static_cast<double>(most_layers) || period != std::floor(period)) {
      reading.fields.wrong(reading.own(field),
                           fmt::format("it is not a number of layers (got {})", period));
    }
    reading.config[key] = every_so_many(static_cast<std::int64_t>(period), reading.shown_layers());
  }
}

void read_choices(GgufReading& reading) {
  for (const auto& [key, choice] : reading.form.choices) {
    reading.config[key] = value_of(choice.otherwise);
    const Json* const found = reading.fields.find(reading.own(choice.field));
    for (const auto& [field, value] : choice.values) {
      if (found != nullptr && found->is_number() != value_of(field).is_number()) {
        reading.fields.wrong(reading.own(choice.field), "it has another type");
      }
      if (reading.fields.has_value(reading.own(choice.field), field)) {
        reading.config[key] = value_of(value);
      }
    }
  }
}

/// Fields with one value, where the file has them.
void check_fields(GgufReading& reading) {
  for (const auto& [field, json] : reading.form.fields) {
    if (reading.fields.find(reading.own(field)) != nullptr &&
        !reading.fields.has_value(reading.own(field), json)) {
      reading.fields.wrong(reading.own(field),
                           fmt::format("it is not supported (expected {})", json));
    }
  }
  for (const auto& [field, key] : reading.form.also) {
    reading.fields.find(reading.own(field));
  }
  for (const auto& [field, json] : reading.form.written) {
    reading.fields.any(reading.own(field));
  }
  if (reading.form.rope_sections) {  // all positions of a token of text are the same
    reading.fields.any(reading.own(sections_field));
  }
  const std::string local = reading.own(local_theta_field);
  if (const auto base = reading.fields.number(local);
      base && !reading.form.keys.contains(local_theta_field) &&
      *base != reading.config[reading.form.rope_key]) {
    reading.fields.wrong(local,
                         "layers with a window have no base of their own (expected that of "
                         "rope.freq_base)");
  }
}

[[noreturn]] void different_width(GgufReading& reading, const char* field, double expected,
                                  double got) {
  reading.fields.wrong(
      reading.own(field),
      fmt::format("it differs from the width of a head (expected {}, got {})", expected, got));
}

void read_heads(GgufReading& reading) {
  const std::int64_t dim = reading.size_of("embedding_length");
  const std::int64_t heads = reading.size_of("attention.head_count");
  if (reading.form.sizes.contains("attention.head_count") && heads <= 0) {
    reading.fields.wrong(reading.own("attention.head_count"), "is not positive");
  }
  if (reading.form.keys.contains("rope.dimension_count") ||
      reading.form.keys.contains("attention.key_length") ||
      !reading.form.sizes.contains("attention.head_count")) {
    return;  // heads of another form, or none
  }
  const std::int64_t width = dim / heads;
  const double keys = reading.fields.number(reading.own("attention.key_length"))
                          .value_or(static_cast<double>(width));
  if (const double other =
          reading.fields.number(reading.own("attention.value_length")).value_or(keys);
      other != keys) {
    different_width(reading, "attention.value_length", keys, other);
  }
  const double rotated = reading.fields.number(reading.own("rope.dimension_count")).value_or(keys);
  if (keys < 1 || keys > 0x1p24) {
    reading.fields.wrong(reading.own("attention.key_length"), "it is not the width of a head");
  }
  if (reading.form.partial_rope && rotated > 0 && rotated <= keys) {
    reading.rotated_share = rotated / keys;
  } else if (rotated != keys) {
    different_width(reading, "rope.dimension_count", keys, rotated);
  }
  if (reading.form.head_dim_key.empty() && keys != static_cast<double>(width)) {
    different_width(reading, "attention.key_length", static_cast<double>(width), keys);
  }
  reading.head_dim = static_cast<std::int64_t>(keys);
  if (!reading.form.head_dim_key.empty()) {
    reading.config[reading.form.head_dim_key] = reading.head_dim;
  }
  if (reading.form.scores_by_width > 0) {
    reading.config["query_pre_attn_scalar"] =
        reading.size_of("block_count") == reading.form.scores_by_width ? width : reading.head_dim;
  }
}

void read_tokens(GgufReading& reading) {
  const auto token = [&](const char* name) {
    const Json* const value = reading.fields.find(std::string("tokenizer.ggml.") + name);
    return value == nullptr ? Json() : *value;
  };
  reading.config["bos_token_id"] = token("bos_token_id");
  reading.config["pad_token_id"] = token("padding_token_id");
  Json ends = Json::array();
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    if (Json id = token(name); !id.is_null() && std::ranges::find(ends, id) == ends.end()) {
      ends.push_back(std::move(id));
    }
  }
  reading.config["eos_token_id"] = ends.empty() ? Json() : ends.size() == 1 ? ends[0] : ends;
}

}  // namespace

GgufModel read_gguf_model(const TensorSource& file) {
  GgufReading reading(file);
  reading.config = {{"model_type", reading.family.name}};
  if (reading.form.rope) {
    reading.config[reading.form.rope_key] = reading.form.rope_theta;
  }
  for (const auto& [key, json] : reading.form.config) {
    if (!key.starts_with(rope_part)) {
      reading.config[key] = value_of(json);
    }
  }
  read_sizes(reading);
  if (!reading.form.keys.contains(further_field)) {
    leave_out_further_layers(reading);
  }
  for (const auto& [key, json] : reading.form.config) {
    if (reading.config.contains(key) && reading.config[key].is_array()) {
      reading.config[key] = reading.for_each_layer(reading.config[key]);
    }
  }
  reading.config[reading.form.vocab_key] = info(reading, "token_embd.weight").shape[0];
  read_layers(reading);
  read_keys(reading);
  read_choices(reading);
  if (reading.form.keys.contains(further_field)) {
    reading.further_layers =
        static_cast<std::int64_t>(reading.fields.number(reading.own(further_field)).value_or(0));
    reading.config[reading.form.keys.at(further_field)] = 0;  // they are not read
  }
  if (!reading.form.config.contains(reading.form.tied_key)) {
    reading.config[reading.form.tied_key] = !reading.file.contains("output.weight");
  }
  read_heads(reading);
  read_windows(reading);
  read_windowed(reading);
  read_widths(reading);
  read_rotary(reading);
  for (const auto& [key, tensor] : reading.form.present) {
    reading.config[key] = has_in_some_layer(reading, tensor);
  }
  for (const auto& [key, tensors] : reading.form.lacking) {
    reading.config[key] = lacks_in_some_layer(reading, tensors.first, tensors.second);
  }
  check_fields(reading);
  read_tokens(reading);
  const DType dtype = info(reading, "token_embd.weight").dtype;
  reading.config["torch_dtype"] = dtype == DType::f16    ? "float16"
                                  : dtype == DType::bf16 ? "bfloat16"
                                                         : "float32";
  for (const char* name : {vocab_field, "rope.scaling.finetuned"}) {
    reading.fields.find(reading.own(name));
  }
  reading.fields.finish(reading.own(""));
  return {.config = json_text(reading.config), .further_layers = reading.further_layers};
}

bool is_rotary_tensor(std::string_view name) {
  return name == rope_factors || name == long_rows || name == short_rows;
}

}  // namespace tessera::hub
