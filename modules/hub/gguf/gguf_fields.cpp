module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
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
      : form_(form),
        config_(parse_json(content.config)),
        content_(content),
        architecture_(form.architecture) {
    for (const auto& [name, parts] : form_.nested_global) {
      flatten(config_.value(name, Json()), parts);
    }
    for (const models::GgufLayerKind& kind : form_.layers.kinds) {
      if (!kind.architecture.empty() && has_layer(kind.word)) {
        architecture_ = kind.architecture;
      }
    }
    if (const auto further = form_.keys.find(further_field); further != form_.keys.end()) {
      config_[further->second] = 0;  // they are not written
    }
  }

  GgufFields write() {
    fields_ = content_.tokenizer.empty() ? Json::object() : parse_json(content_.tokenizer);
    set("general.architecture", "text", architecture_);
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
    for (const auto* const values : {&form_.fields, &form_.when, &form_.written}) {
      for (const auto& [field, json] : *values) {
        set_value(own(field), parse_json("[" + json + "]")[0]);
      }
    }
    if (form_.rope) {
      set_value(own("rope.freq_base"), rope_theta());
    }
    write_choices();
    write_every();
    write_layers();
    write_windowed();
    write_widths();
    check_shared_layers();
    set(own(vocab_field), "u32", config_.at(form_.vocab_key));
    write_heads();
    write_windows();
    GgufFields written;
    write_scaling(written);
    written.fields = json_text(fields_);
    return written;
  }

 private:
  std::string own(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }

  /// Parts of an object for each layer without a window, all alike, as keys.
  void flatten(const Json& objects, const std::map<std::string, std::string>& parts) {
    for (const Json& object : objects) {
      for (const auto& [part, key] : parts) {
        if (object.contains(part)) {
          config_[key] = object[part];
        }
      }
    }
  }

  bool has_layer(const std::string& word) const {
    const Json& list = config_.at(form_.layers.key);
    return std::ranges::any_of(list, [&](const Json& one) { return one == word; });
  }
  void set(const std::string& name, const char* type, Json value) {
    fields_[name] = {{"type", type}, {"value", std::move(value)}};
  }
  /// With the type that converters give such a value.
  void set_value(const std::string& name, Json value) {
    if (value.is_array()) {
      set_list(name, std::move(value));
      return;
    }
    const char* const type = value.is_boolean()        ? "bool"
                             : value.is_string()       ? "text"
                             : value.is_number_float() ? "f32"
                                                       : "u32";
    set(name, type, std::move(value));
  }

  /// `value`: a list for the layers.
  void set_list(const std::string& name, Json values) {
    const bool flags = !values.empty() && values[0].is_boolean();
    const bool fractions = !values.empty() && values[0].is_number_float();
    fields_[name] = {{"type", flags       ? "bool"
                              : fractions ? "f32"
                                          : "i32"},
                     {"values", std::move(values)}};
  }

  /// A size of config.json. Error (input): it is none.
  std::int64_t size_of(const std::string& key) const {
    const Json size = config_.value(key, Json());
    if (!size.is_number_integer()) {
      fail_input({.thing = "a GGUF file",
                  .wrong = fmt::format("a field needs {} of config.json", key),
                  .expected = "an integer",
                  .got = shown(size.dump(), 40)});
    }
    return size.get<std::int64_t>();
  }

  /// The number that all terms are. Error (input): they differ.
  std::int64_t number_of(const std::vector<GgufTerm>& terms) const {
    std::optional<std::int64_t> number;
    for (const GgufTerm& term : terms) {
      std::int64_t value = term.product ? 1 : 0;
      for (const std::string& key : term.keys) {
        const std::int64_t one = size_of(key);
        value = term.product ? value * one : value + one;
      }
      if (number && *number != value) {
        fail_input(
            {.thing = "a GGUF file",
             .wrong = fmt::format("it has one number for {} and {}, which differ here",
                                  fmt::join(terms[0].keys, " and "), fmt::join(term.keys, " and ")),
             .got = fmt::format("{} and {}", *number, value),
             .advice = "export it for transformers"});
      }
      number = value;
    }
    return number.value_or(0);
  }

  void write_key(const std::string& field, const std::string& text) {
    const std::vector<GgufTerm> terms = terms_of(text);
    if (terms.size() > 1 || terms[0].keys.size() > 1) {
      set(own(field), "u32", number_of(terms));
      return;
    }
    if (text.starts_with(rope_part)) {
      const Json part = rope_of().value(text.substr(rope_part.size()), Json());
      if (!part.is_null()) {
        set_value(own(field), part);
      }
      return;
    }
    const Json value = text == local_theta ? local_base() : config_.value(text, Json());
    // A program of ggml may need a field of a window, and takes 0 for none.
    if (!value.is_null()) {
      set_value(own(field), value);
    } else if (field == window_field) {
      set(own(field), "u32", 0);
    }
  }

  void write_choices() {
    for (const auto& [key, choice] : form_.choices) {
      const Json value = config_.value(key, Json());
      for (const auto& [field, json] : choice.values) {
        if (!fields_.contains(own(choice.field)) && parse_json("[" + json + "]")[0] == value) {
          set_value(own(choice.field), parse_json("[" + field + "]")[0]);
        }
      }
    }
  }

  std::int64_t layers() const {
    return config_.at(form_.sizes.at("block_count")).get<std::int64_t>();
  }

  void write_every() {
    for (const auto& [field, key] : form_.every) {
      const auto list = config_.value(key, std::vector<std::int64_t>());
      const std::int64_t period = list.empty() ? 0 : list[0] + 1;
      if (list != every_so_many(period, layers())) {
        fail_input({.thing = "a GGUF file",
                    .wrong = fmt::format("it says of each how many-th layer it is one of {}, and "
                                         "these are others",
                                         key),
                    .got = shown(json_text(config_.at(key)), 120),
                    .advice = "export it for transformers"});
      }
      set(own(field), "u32", period);
    }
  }

  void write_layers() {
    const models::GgufLayers& form = form_.layers;
    if (form.key.empty()) {
      return;
    }
    const Json& list = config_.at(form.key);
    const std::vector<models::GgufLayerKind>& kinds = form.kinds;
    std::vector<std::size_t> of_layers(static_cast<std::size_t>(layers()), 1);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (form.numbers) {
        of_layers.at(list[i].get<std::size_t>()) = 0;
        continue;
      }
      const auto kind =
          std::ranges::find(kinds, list[i].get<std::string>(), &models::GgufLayerKind::word);
      if (kind == kinds.end()) {
        fail_input({.thing = "a GGUF file",
                    .wrong = fmt::format("files of the architecture {} have no layers '{}'",
                                         architecture_, shown(list[i].get<std::string>(), 40)),
                    .advice = "export it for transformers"});
      }
      of_layers.at(i) = static_cast<std::size_t>(kind - kinds.begin());
    }
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const bool is_other =
          !kinds[i].architecture.empty() && kinds[i].architecture != architecture_;
      if (is_other && std::ranges::find(of_layers, i) != of_layers.end()) {
        fail_input({.thing = "a GGUF file",
                    .wrong = fmt::format("its architecture {} has no layers '{}', and no other has "
                                         "all layers of this model",
                                         architecture_, kinds[i].word),
                    .advice = "export it for transformers"});
      }
      if (kinds[i].field.empty() || is_other) {
        continue;
      }
      const Json value = kinds[i].key.empty() ? Json(true) : config_.at(kinds[i].key);
      Json values = Json::array();
      for (const std::size_t kind : of_layers) {
        values.push_back(kind == i ? value : value.is_boolean() ? Json(false) : Json(0));
      }
      set_list(own(kinds[i].field), std::move(values));
    }
    if (!form.interval.empty()) {
      write_interval(of_layers);
    }
  }

  bool has_window(std::int64_t layer) const {
    return config_.at("layer_types").at(static_cast<std::size_t>(layer)) == window_layer;
  }

  void write_windowed() {
    for (const auto& [field, keys] : form_.windowed) {
      const Json& with = config_.at(keys.first);
      const Json without = config_.value(keys.second, Json());
      if (without.is_null()) {
        set_value(own(field), with);
        continue;
      }
      Json values = Json::array();
      for (std::int64_t layer = 0; layer < layers(); ++layer) {
        values.push_back(has_window(layer) ? with : without);
      }
      set_list(own(field), std::move(values));
    }
  }

  /// How many last layers use keys and values of others.
  std::int64_t shared_layers() const {
    const auto shared = form_.keys.find(shared_field);
    const Json count = shared == form_.keys.end() ? Json() : config_.value(shared->second, Json());
    return count.is_number() ? count.get<std::int64_t>() : 0;
  }

  void write_widths() {
    if (form_.wide_shared.empty() || !config_.value(form_.wide_shared, false)) {
      return;
    }
    const std::int64_t width = size_of(form_.sizes.at("feed_forward_length"));
    const std::int64_t shared = shared_layers();
    Json values = Json::array();
    for (std::int64_t layer = 0; layer < layers(); ++layer) {
      values.push_back(layer < layers() - shared ? width : 2 * width);
    }
    set_list(own("feed_forward_length"), std::move(values));
  }

  /// Programs of ggml use keys and values of the last layer before those that share some, and of
  /// the one before it for layers with a window. Error (input): the model uses others.
  void check_shared_layers() const {
    const std::int64_t shared = shared_layers();
    const std::int64_t first = shared > 0 ? layers() - shared : 0;
    for (std::int64_t layer = first; shared > 0 && layer < layers(); ++layer) {
      const bool windowed = has_window(layer);
      const bool fits = first > (windowed ? 1 : 0) && !has_window(first - 1) &&
                        (!windowed || has_window(first - 2));
      if (!fits) {
        fail_input({.thing = "a GGUF file",
                    .wrong = fmt::format("its last {} layers share keys of the two layers before "
                                         "them, of which the first one has a window and the other "
                                         "one none; here they are others",
                                         shared),
                    .advice = "export it for transformers"});
      }
    }
  }

  /// Where the last kind is each so many-th layer.
  void write_interval(const std::vector<std::size_t>& of_layers) {
    const std::size_t last = form_.layers.kinds.size() - 1;
    std::vector<std::int64_t> list;
    for (std::size_t layer = 0; layer < of_layers.size(); ++layer) {
      if (of_layers[layer] == last) {
        list.push_back(static_cast<std::int64_t>(layer));
      }
    }
    if (!list.empty() && list == every_so_many(list[0] + 1, layers())) {
      set(own(form_.layers.interval), "u32", list[0] + 1);
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
        form_.keys.contains("attention.key_length") ||
        !form_.sizes.contains("attention.head_count")) {
      return;
    }
    if (form_.rope_sections) {
      set_list(own(sections_field), rope_sections(rotated() / 2));
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
    } else if (form_.pair_factors) {
      write_pair_factors(rope, written);
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
    if (kind == "yarn") {
      write_logarithm(rope);
    }
  }

  void write_pair_factors(const Json& rope, GgufFields& written) {
    const auto field = form_.also.find("rope.dimension_count");
    const std::int64_t pairs =
        (field == form_.also.end() ? head_dim() : size_of(field->second)) / 2;
    std::vector<float> factors(static_cast<std::size_t>(std::max<std::int64_t>(pairs, 0)), 1);
    const double share = rope.value("partial_rotary_factor", 1.0);
    for (auto pair = static_cast<std::int64_t>(static_cast<double>(pairs) * share); pair < pairs;
         ++pair) {
      factors[static_cast<std::size_t>(pair)] = static_cast<float>(pair_factor);
    }
    written.factors.emplace(rope_factors, std::move(factors));
  }

  /// By what the logarithm of the scaling is multiplied: it is said, or follows from the amplitude
  /// where mscale has one value.
  void write_logarithm(const Json& rope) {
    const auto one = form_.config.find(std::string(rope_part) + "mscale");
    if (rope.contains("mscale_all_dim")) {
      set(own(log_field), "f32", rope["mscale_all_dim"].get<double>() * form_.log_share);
    } else if (one != form_.config.end() && rope.contains("attention_factor")) {
      const double growth = yarn_growth * std::log(rope.at("factor").get<double>());
      const double mscale = parse_json("[" + one->second + "]")[0].get<double>();
      const double all = (1 + mscale * growth) / rope["attention_factor"].get<double>() - 1;
      set(own(log_field), "f32", growth > 0 ? all / growth * form_.log_share : 0.0);
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
  std::string architecture_;
  Json fields_;
};

}  // namespace

GgufFields gguf_fields(const GgufForm& form, const GgufContent& content) {
  return FieldWriter(form, content).write();
}

}  // namespace tessera::hub
