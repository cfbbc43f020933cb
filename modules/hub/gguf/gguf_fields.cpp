module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.models;
import :gguf_config;
import :gguf_names;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;
using models::GgufForm;

/// The fields of a file for a config.json.
class FieldWriter {
 public:
  FieldWriter(const GgufForm& form, const GgufContent& content)
      : form_(form), config_(parse_json(content.config)), content_(content) {
    if (const auto further = form_.keys.find(further_field); further != form_.keys.end()) {
      config_[further->second] = 0;  // they are not written
    }
  }

  GgufFields write() {
    fields_ = content_.tokenizer.empty() ? Json::object() : parse_json(content_.tokenizer);
    set("general.architecture", "text", form_.architecture);
    set("general.type", "text", "model");
    if (!content_.name.empty()) {
      set("general.name", "text", content_.name);
    }
    const std::map<std::string, int> file_types = {{"F32", 0},  {"F16", 1},     {"Q4_0", 2},
                                                   {"Q8_0", 7}, {"Q4_K_M", 15}, {"BF16", 32}};
    set("general.file_type", "u32", file_types.at(content_.type));
    set("general.quantization_version", "u32", 2);
    for (const auto* const keys : {&form_.sizes, &form_.keys, &form_.also}) {
      for (const auto& [field, key] : *keys) {
        write_key(field, key);
      }
    }
    for (const auto* const values : {&form_.fields, &form_.when}) {
      for (const auto& [field, json] : *values) {
        set_value(own(field), parse_json("[" + json + "]")[0]);
      }
    }
    set_value(own("rope.freq_base"), rope_theta());
    set(own("vocab_size"), "u32", config_.at(form_.vocab_key));
    write_heads();
    write_windows();
    GgufFields written;
    write_scaling(written);
    written.fields = json_text(fields_);
    return written;
  }

 private:
  std::string own(std::string_view name) const {
    return fmt::format("{}.{}", form_.architecture, name);
  }
  void set(const std::string& name, const char* type, Json value) {
    fields_[name] = {{"type", type}, {"value", std::move(value)}};
  }
  /// With the type that converters give such a value.
  void set_value(const std::string& name, Json value) {
    const char* const type = value.is_boolean()        ? "bool"
                             : value.is_string()       ? "text"
                             : value.is_number_float() ? "f32"
                                                       : "u32";
    set(name, type, std::move(value));
  }

  void write_key(const std::string& field, const std::string& sum) {
    if (const std::vector<std::string> keys = summands(sum); keys.size() > 1) {
      std::int64_t total = 0;
      for (const std::string& key : keys) {
        total += config_.at(key).get<std::int64_t>();
      }
      set(own(field), "u32", total);
      return;
    }
    const Json value = sum == local_theta ? local_base() : config_.value(sum, Json());
    // A program of ggml may need a field of a window, and takes 0 for none.
    if (!value.is_null()) {
      set_value(own(field), value);
    } else if (field == window_field) {
      set(own(field), "u32", 0);
    }
  }

  /// rope_parameters, of layers without a window where these differ.
  Json rope_of() const {
    const Json rope = config_.value("rope_parameters", Json::object());
    return rope.value(full_layer, rope);
  }
  /// The base of layers with a window; null: rope_parameters do not tell them apart.
  Json local_base() const {
    const Json rope = config_.value("rope_parameters", Json::object());
    return rope.value(window_layer, Json::object()).value("rope_theta", Json());
  }
  double rope_theta() const {
    return rope_of().value("rope_theta", config_.value(form_.rope_key, form_.rope_theta));
  }

  std::int64_t head_dim() const {
    const Json width =
        form_.head_dim_key.empty() ? Json() : config_.value(form_.head_dim_key, Json());
    return width.is_number()
               ? width.get<std::int64_t>()
               : config_.at(form_.sizes.at("embedding_length")).get<std::int64_t>() /
                     config_.at(form_.sizes.at("attention.head_count")).get<std::int64_t>();
  }

  std::int64_t rotated() const {
    const double share =
        rope_of().value("partial_rotary_factor", config_.value("partial_rotary_factor", 1.0));
    const auto width = static_cast<double>(head_dim());
    return form_.partial_rope ? static_cast<std::int64_t>(width * share) : head_dim();
  }

  void write_heads() {
    if (form_.keys.contains("rope.dimension_count") ||
        form_.keys.contains("attention.key_length")) {
      return;
    }
    set(own("attention.key_length"), "u32", head_dim());
    set(own("attention.value_length"), "u32", head_dim());
    set(own("rope.dimension_count"), "u32", rotated());
  }

  void write_windows() {
    if (!form_.layer_types || !config_.contains("layer_types")) {
      return;
    }
    Json values = Json::array();
    for (const Json& type : config_["layer_types"]) {
      values.push_back(type == window_layer);
    }
    fields_[own(pattern_field)] = {{"type", "bool"}, {"values", std::move(values)}};
  }

  void write_scaling(GgufFields& written) {
    const Json rope = rope_of();
    const std::string kind = rope.value("rope_type", "default");
    if (rope.contains("original_max_position_embeddings")) {
      set(own("rope.scaling.original_context_length"), "u32",
          rope["original_max_position_embeddings"]);
    }
    if (kind == "llama3") {
      written.factors.emplace(
          rope_factors, llama3_factors(head_dim(), rope_theta(), rope.at("factor").get<double>(),
                                       rope.at("low_freq_factor").get<double>(),
                                       rope.at("high_freq_factor").get<double>(),
                                       rope.at("original_max_position_embeddings").get<double>()));
    } else if (kind == "longrope") {
      write_long_factors(rope, written);
    }
    if (kind != "linear" && kind != "yarn") {
      return;
    }
    set(own("rope.scaling.type"), "text", kind);
    set(own("rope.scaling.factor"), "f32", rope.at("factor"));
    if (kind == "yarn") {
      set(own("rope.scaling.yarn_beta_slow"), "f32", rope.value("beta_slow", yarn_slow));
      set(own("rope.scaling.yarn_beta_fast"), "f32", rope.value("beta_fast", yarn_fast));
    }
    if (rope.contains("mscale_all_dim")) {
      set(own("rope.scaling.yarn_log_multiplier"), "f32",
          rope["mscale_all_dim"].get<double>() * log_share);
    }
  }

  void write_long_factors(const Json& rope, GgufFields& written) {
    written.factors.emplace(long_rows, rope.at("long_factor").get<std::vector<float>>());
    written.factors.emplace(short_rows, rope.at("short_factor").get<std::vector<float>>());
    const auto original = rope.at("original_max_position_embeddings").get<double>();
    const double factor =
        rope.value("factor", config_.at(form_.sizes.at("context_length")).get<double>() / original);
    const double amplitude = factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
    set(own("rope.scaling.attn_factor"), "f32", rope.value("attention_factor", amplitude));
  }

  const GgufForm& form_;
  Json config_;
  const GgufContent& content_;
  Json fields_;
};

}  // namespace

GgufFields gguf_fields(const GgufForm& form, const GgufContent& content) {
  return FieldWriter(form, content).write();
}

}  // namespace tessera::hub
