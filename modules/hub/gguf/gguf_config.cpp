module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
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
import tessera.ops;
import tessera.models;
import tessera.checkpoint;
import :gguf;
import :gguf_config;
import :gguf_names;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;
using models::GgufForm;

constexpr std::int64_t most_layers = 10000;

// The bounds of llama3, which files do not say: those of all its models.
constexpr double llama3_low = 1;
constexpr double llama3_high = 4;
constexpr double llama3_positions = 8192;

/// Fields of a file, by their names; those that were asked for are known.
class FileFields {
 public:
  explicit FileFields(const TensorSource& file)
      : fields_(parse_json(file.meta()).value("gguf", Json::object())), path_(file.path()) {}

  /// A field with one value; null: it is not there.
  const Json* find(const std::string& name) {
    const Json* const field = any(name);
    if (field != nullptr && !field->contains("value")) {
      wrong(name, "a list, as if layers differed, is not supported");
    }
    return field == nullptr ? nullptr : &(*field)["value"];
  }

  /// A field of any form.
  const Json* any(const std::string& name) {
    known_.insert(name);
    const auto at = fields_.find(name);
    return at == fields_.end() ? nullptr : &*at;
  }

  [[noreturn]] void wrong(const std::string& name, const std::string& what) const {
    fail_input({.thing = fmt::format("{}: field '{}'", path_, shown(name, 80)), .wrong = what});
  }

  /// Numbers are stored in f32: 1e-5 is meant, not its nearest value.
  static Json plain(const Json& value) {
    return value.is_number_float() ? parse_json(fmt::format("[{}]", value.get<float>()))[0] : value;
  }

  std::optional<double> number(const std::string& name) {
    const Json* const value = find(name);
    if (value != nullptr && !value->is_number()) {
      wrong(name, "it is not a number");
    }
    return value == nullptr ? std::nullopt : std::optional(plain(*value).get<double>());
  }

  std::string text(const std::string& name, const std::string& otherwise) {
    const Json* const value = find(name);
    if (value != nullptr && !value->is_string()) {
      wrong(name, "it is not a text");
    }
    return value == nullptr ? otherwise : value->get<std::string>();
  }

  /// Error: a field of the architecture that nobody asked for.
  void finish(const std::string& begin) const {
    std::vector<std::string> unknown;
    for (const auto& [name, field] : fields_.items()) {
      if (name.starts_with(begin) && !known_.contains(name)) {
        unknown.push_back(name);
      }
    }
    if (!unknown.empty()) {
      fail_input({.thing = path_,
                  .wrong = fmt::format(
                      "its fields {} are not supported: this program would compute another model",
                      join_words(unknown))});
    }
  }

 private:
  Json fields_;
  std::string path_;
  std::set<std::string> known_;
};

/// Whether a field's value is this one (JSON).
bool has_value(FileFields& fields, const std::string& name, const std::string& json) {
  const Json* const value = fields.find(name);
  return value != nullptr && FileFields::plain(*value) == parse_json("[" + json + "]")[0];
}

/// How many conditions a file fulfils of a family's; -1: not all.
int conditions(FileFields& fields, const GgufForm& form, const std::string& architecture) {
  const auto own = [&](const std::string& name) { return architecture + "." + name; };
  for (const auto& [name, json] : form.when) {
    if (!has_value(fields, own(name), json)) {
      return -1;
    }
  }
  for (const std::string& name : form.needs) {
    const Json* const value = fields.find(own(name));
    if (value == nullptr || *value == 0) {
      return -1;
    }
  }
  return static_cast<int>(form.when.size() + form.needs.size());
}

/// The families of files that are read, built-in ones before those of plugins.
struct ReadFamily {
  std::string name;
  GgufForm form;
  std::string architecture;  // of the file
};

std::optional<ReadFamily> find_family(FileFields& fields, const std::string& architecture,
                                      const std::vector<std::string>& names,
                                      std::set<std::string>& known) {
  std::optional<ReadFamily> best;
  int most = -1;
  for (const std::string& name : names) {
    GgufForm form = models::model_family(name).gguf();
    if (form.architecture.empty() || form.only_written) {
      continue;
    }
    bool fits = form.architecture == architecture;
    known.insert(form.architecture);
    for (const models::GgufLayerKind& kind : form.layers.kinds) {
      if (!kind.architecture.empty()) {
        known.insert(kind.architecture);
        fits = fits || kind.architecture == architecture;
      }
    }
    if (const int count = fits ? conditions(fields, form, architecture) : -1; count > most) {
      most = count;
      best = ReadFamily{name, std::move(form), architecture};
    }
  }
  return best;
}

ReadFamily family_of_file(FileFields& fields) {
  if (const double parts = fields.number("split.count").value_or(1); parts > 1) {
    fields.wrong("split.count", fmt::format("it is one of {} parts of a model; merge them with "
                                            "llama.cpp's gguf-split",
                                            parts));
  }
  const std::string architecture = fields.text("general.architecture", "");
  std::set<std::string> known;
  for (const auto& names : {models::built_in_families(), models::model_families()}) {
    if (auto found = find_family(fields, architecture, names, known)) {
      return *std::move(found);
    }
  }
  fields.wrong(
      "general.architecture",
      known.contains(architecture)
          ? fmt::format("none of the families with files of '{}' has such fields", architecture)
          : fmt::format("'{}' is not supported (only {})", shown(architecture, 40),
                        join_words(std::vector<std::string>(known.begin(), known.end()))));
}

/// The reading of a file's fields as a config.json.
class ConfigReader {
 public:
  explicit ConfigReader(const TensorSource& file)
      : file_(file), fields_(file), family_(family_of_file(fields_)), form_(family_.form) {}

  GgufModel read() {
    config_ = {{"model_type", family_.name}};
    if (form_.rope) {
      config_[form_.rope_key] = form_.rope_theta;
    }
    for (const auto& [key, json] : form_.config) {
      if (!key.starts_with(rope_part)) {
        config_[key] = value_of(json);
      }
    }
    read_sizes();
    if (!form_.keys.contains(further_field)) {
      leave_out_further_layers();
    }
    for (const auto& [key, json] : form_.config) {
      if (config_.contains(key) && config_[key].is_array()) {
        config_[key] = for_each_layer(config_[key]);
      }
    }
    config_[form_.vocab_key] = info("token_embd.weight").shape[0];
    read_layers();
    read_keys();
    read_choices();
    if (form_.keys.contains(further_field)) {
      further_layers_ = static_cast<std::int64_t>(fields_.number(own(further_field)).value_or(0));
      config_[form_.keys.at(further_field)] = 0;  // they are not read
    }
    if (!form_.config.contains(form_.tied_key)) {
      config_[form_.tied_key] = !file_.contains("output.weight");
    }
    read_heads();
    read_windows();
    read_windowed();
    read_widths();
    read_scaling();
    read_rope_parts();
    if (share_ != 1) {
      name_share();
    }
    if (const auto local = form_.keys.find(local_theta_field);
        local != form_.keys.end() && local->second == local_theta) {
      name_layers();
    }
    for (const auto& [key, tensor] : form_.present) {
      config_[key] = has_in_some_layer(tensor);
    }
    for (const auto& [key, tensors] : form_.lacking) {
      config_[key] = lacks_in_some_layer(tensors.first, tensors.second);
    }
    check_fields();
    read_tokens();
    const DType dtype = info("token_embd.weight").dtype;
    config_["torch_dtype"] = dtype == DType::f16    ? "float16"
                             : dtype == DType::bf16 ? "bfloat16"
                                                    : "float32";
    for (const char* name : {vocab_field, "rope.scaling.finetuned"}) {
      fields_.find(own(name));
    }
    fields_.finish(own(""));
    return {.config = json_text(config_), .further_layers = further_layers_};
  }

 private:
  std::string own(std::string_view name) const {
    return fmt::format("{}.{}", family_.architecture, name);
  }

  static Json value_of(const std::string& json) { return parse_json("[" + json + "]")[0]; }

  /// The values again from the first one after the last one, one for each layer.
  Json for_each_layer(const Json& values) const {
    Json list = Json::array();
    for (std::int64_t layer = 0; layer < shown_layers() && !values.empty(); ++layer) {
      list.push_back(values[static_cast<std::size_t>(layer) % values.size()]);
    }
    return list;
  }
  /// How many layers lists are made for: more are refused by the family.
  std::int64_t shown_layers() const {
    return std::min<std::int64_t>(size_of("block_count"), most_layers);
  }

  const TensorInfo& info(const std::string& name) const {
    const TensorInfo& found = file_.info(name);
    if (found.shape.size() != 2) {
      fail_input(
          {.thing = file_.path(), .wrong = fmt::format("tensor '{}' is not a matrix", name)});
    }
    return found;
  }

  /// `name`: after the layer's. Layers may differ in which parts they have.
  bool has_in_some_layer(const std::string& name) const {
    for (std::int64_t layer = 0; layer < shown_layers(); ++layer) {
      if (file_.contains(fmt::format("blk.{}.{}", layer, name))) {
        return true;
      }
    }
    return false;
  }

  /// Whether a layer has the first tensor and not the second.
  bool lacks_in_some_layer(const std::string& first, const std::string& second) const {
    for (std::int64_t layer = 0; layer < shown_layers(); ++layer) {
      if (file_.contains(fmt::format("blk.{}.{}", layer, first)) &&
          !file_.contains(fmt::format("blk.{}.{}", layer, second))) {
        return true;
      }
    }
    return false;
  }

  std::int64_t size_of(const char* field) const {
    const auto size = form_.sizes.find(field);
    const auto key = form_.keys.find(field);
    const auto value = size != form_.sizes.end() ? config_.find(size->second)
                       : key != form_.keys.end() ? config_.find(terms_of(key->second)[0].keys[0])
                                                 : config_.end();
    return value != config_.end() && value->is_number() ? value->get<std::int64_t>() : 0;
  }

  void read_sizes() {
    for (const auto& [field, key] : form_.sizes) {
      if (!form_.wide_shared.empty() && field == "feed_forward_length") {
        continue;  // see read_widths
      }
      const std::optional<double> value = fields_.number(own(field));
      const bool is_count = !std::string_view(field).ends_with("_epsilon");
      if (!value && std::string_view(field) == "attention.head_count_kv") {
        continue;  // as many as heads
      }
      if (!value) {
        fields_.wrong(own(field), "is missing");
      }
      if (is_count && (*value < 0 || *value > 0x1p40 || *value != std::floor(*value))) {
        fields_.wrong(own(field), fmt::format("it is not a size (got {})", *value));
      }
      // No size is 0.
      config_[key] = !is_count     ? Json(*value)
                     : *value == 0 ? Json()
                                   : Json(static_cast<std::int64_t>(*value));
    }
    if (const auto heads = form_.sizes.find("attention.head_count_kv");
        heads != form_.sizes.end()) {
      config_.emplace(heads->second, Json(config_[form_.sizes.at("attention.head_count")]));
    }
    if (const auto base = fields_.number(own("rope.freq_base")); base && form_.rope) {
      config_[form_.rope_key] = *base;
    }
  }

  static bool is_one_key(const std::vector<GgufTerm>& terms) {
    return terms.size() == 1 && terms[0].keys.size() == 1;
  }

  /// Layers that predict further tokens are counted among the others, and config.json has no key.
  void leave_out_further_layers() {
    const double further = fields_.number(own(further_field)).value_or(0);
    const std::int64_t layers = size_of("block_count");
    if (further == 0) {
      return;
    }
    if (further < 0 || further != std::floor(further) || further >= static_cast<double>(layers)) {
      fields_.wrong(own(further_field),
                    fmt::format("it is not a number of layers (got {})", further));
    }
    further_layers_ = static_cast<std::int64_t>(further);
    config_[form_.sizes.at("block_count")] = layers - further_layers_;
  }

  void read_keys() {
    for (const auto& [field, key] : form_.keys) {
      if (key == local_theta || key.starts_with(rope_part) || !is_one_key(terms_of(key))) {
        continue;
      }
      if (const Json* const value = fields_.find(own(field))) {
        // A window of 0 is none.
        config_[key] = field == window_field && *value == 0 ? Json() : FileFields::plain(*value);
      }
    }
    for (const auto& [field, text] : form_.keys) {
      if (const std::vector<GgufTerm> terms = terms_of(text); !is_one_key(terms)) {
        for (const GgufTerm& term : terms) {
          read_term(field, term);
        }
      }
    }
    for (const auto& [field, key] : form_.every) {
      const double period = fields_.number(own(field)).value_or(0);
      if (period < 0 || period > static_cast<double>(most_layers) || period != std::floor(period)) {
        fields_.wrong(own(field), fmt::format("it is not a number of layers (got {})", period));
      }
      config_[key] = every_so_many(static_cast<std::int64_t>(period), shown_layers());
    }
  }

  /// Finds the key of a sum or a product that is not known yet.
  void read_term(const std::string& field, const GgufTerm& term) {
    // Files may lack the number of tokens, which a tensor has.
    const std::optional<double> value = field == vocab_field
                                            ? config_.at(form_.vocab_key).get<double>()
                                            : fields_.number(own(field));
    if (!value) {
      return;
    }
    double rest = *value;
    std::string unknown;
    for (const std::string& key : term.keys) {
      const auto known = config_.find(key);
      if (known != config_.end() && !known->is_string()) {
        const double number = known->is_number() ? known->get<double>() : 0;
        rest = !term.product ? rest - number : number == 0 ? -1 : rest / number;
      } else if (unknown.empty()) {
        unknown = key;
      } else {
        fields_.wrong(own(field), fmt::format("the file says neither {} nor {}", unknown, key));
      }
    }
    const double none = term.product ? 1 : 0;
    if (unknown.empty() ? rest != none : rest < 0 || rest > 0x1p40 || rest != std::floor(rest)) {
      fields_.wrong(own(field),
                    fmt::format("it is not the {} of {} (got {})", term.product ? "product" : "sum",
                                join_words(term.keys), *value));
    }
    if (!unknown.empty()) {
      config_[unknown] = static_cast<std::int64_t>(rest);
    }
  }

  void read_choices() {
    for (const auto& [key, choice] : form_.choices) {
      config_[key] = value_of(choice.otherwise);
      const Json* const found = fields_.find(own(choice.field));
      for (const auto& [field, value] : choice.values) {
        if (found != nullptr && found->is_number() != value_of(field).is_number()) {
          fields_.wrong(own(choice.field), "it has another type");
        }
        if (has_value(fields_, own(choice.field), field)) {
          config_[key] = value_of(value);
        }
      }
    }
  }

  /// The value of a field for a layer; null: the file lacks it.
  Json value_of_layer(const std::string& field, std::int64_t layer) {
    const Json* const found = fields_.any(own(field));
    if (found == nullptr) {
      return {};
    }
    if (found->contains("value")) {
      return (*found)["value"];
    }
    const Json& values = found->at("values");
    if (std::ssize(values) < shown_layers()) {
      fields_.wrong(own(field), fmt::format("expected a value for each of {} layers (got {})",
                                            shown_layers(), values.size()));
    }
    return values[static_cast<std::size_t>(layer)];
  }

  static bool is_none(const Json& value) { return value.is_null() || value == 0 || value == false; }

  void read_layers() {
    const models::GgufLayers& layers = form_.layers;
    if (layers.key.empty()) {
      return;
    }
    bool has_lists = layers.interval.empty();
    for (const models::GgufLayerKind& kind : layers.kinds) {
      const bool is_there = kind.field.empty() || fields_.any(own(kind.field)) != nullptr;
      if (!is_there && layers.interval.empty()) {
        fields_.wrong(own(kind.field), "is missing");
      }
      has_lists = has_lists || (is_there && !kind.field.empty());
    }
    const auto interval = static_cast<std::int64_t>(
        layers.interval.empty()
            ? 0
            : std::clamp<double>(fields_.number(own(layers.interval))
                                     .value_or(static_cast<double>(layers.usual_interval)),
                                 0, static_cast<double>(most_layers)));
    Json list = Json::array();
    for (std::int64_t layer = 0; layer < shown_layers(); ++layer) {
      std::size_t kind = layers.kinds.size() - 1;
      if (has_lists) {
        kind = kind_of(layer);
      } else if (interval < 1 || (layer + 1) % interval != 0) {
        kind = 0;
      }
      if (!layers.numbers) {
        list.push_back(layers.kinds[kind].word);
      } else if (kind == 0) {
        list.push_back(layer);
      }
    }
    config_[layers.key] = std::move(list);
  }

  /// Which kind a layer is of, by lists of the file.
  std::size_t kind_of(std::int64_t layer) {
    const std::vector<models::GgufLayerKind>& kinds = form_.layers.kinds;
    for (std::size_t i = 0; i + 1 < kinds.size(); ++i) {
      const std::string& architecture = kinds[i].architecture;
      const Json value = value_of_layer(kinds[i].field, layer);
      if (!value.is_null() && !value.is_number() && !value.is_boolean()) {
        fields_.wrong(own(kinds[i].field), "it is neither a number nor true or false");
      }
      if (is_none(value) || (!architecture.empty() && architecture != family_.architecture)) {
        continue;
      }
      if (!kinds[i].key.empty()) {
        const Json& same = config_.emplace(kinds[i].key, value).first.value();
        if (same != value) {
          fields_.wrong(own(kinds[i].field),
                        fmt::format("layers differ in it (got {} and {}), which is not supported",
                                    shown(same.dump(), 40), shown(value.dump(), 40)));
        }
      }
      return i;
    }
    return kinds.size() - 1;
  }

  /// Parts of rope_scaling that have fields of their own.
  void read_rope_parts() {
    for (const auto& [field, key] : form_.keys) {
      if (!key.starts_with(rope_part)) {
        continue;
      }
      if (const std::optional<double> value = fields_.number(own(field))) {
        config_.emplace("rope_scaling", Json{{"rope_type", "default"}});
        config_["rope_scaling"][key.substr(rope_part.size())] = *value;
      }
    }
  }

  /// Fields with one value, where the file has them.
  void check_fields() {
    for (const auto& [field, json] : form_.fields) {
      if (fields_.find(own(field)) != nullptr && !has_value(fields_, own(field), json)) {
        fields_.wrong(own(field), fmt::format("it is not supported (expected {})", json));
      }
    }
    for (const auto& [field, key] : form_.also) {
      fields_.find(own(field));
    }
    for (const auto& [field, json] : form_.written) {
      fields_.any(own(field));
    }
    if (form_.rope_sections) {  // all positions of a token of text are the same
      fields_.any(own(sections_field));
    }
    const std::string local = own(local_theta_field);
    if (const auto base = fields_.number(local);
        base && !form_.keys.contains(local_theta_field) && *base != config_[form_.rope_key]) {
      fields_.wrong(local,
                    "layers with a window have no base of their own (expected that of "
                    "rope.freq_base)");
    }
  }

  void read_heads() {
    const std::int64_t dim = size_of("embedding_length");
    const std::int64_t heads = size_of("attention.head_count");
    if (form_.sizes.contains("attention.head_count") && heads <= 0) {
      fields_.wrong(own("attention.head_count"), "is not positive");
    }
    if (form_.keys.contains("rope.dimension_count") ||
        form_.keys.contains("attention.key_length") ||
        !form_.sizes.contains("attention.head_count")) {
      return;  // heads of another form, or none
    }
    const std::int64_t width = dim / heads;
    const double keys =
        fields_.number(own("attention.key_length")).value_or(static_cast<double>(width));
    if (const double other = fields_.number(own("attention.value_length")).value_or(keys);
        other != keys) {
      different_width("attention.value_length", keys, other);
    }
    const double rotated = fields_.number(own("rope.dimension_count")).value_or(keys);
    if (keys < 1 || keys > 0x1p24) {
      fields_.wrong(own("attention.key_length"), "it is not the width of a head");
    }
    if (form_.partial_rope && rotated > 0 && rotated <= keys) {
      share_ = rotated / keys;
    } else if (rotated != keys) {
      different_width("rope.dimension_count", keys, rotated);
    }
    if (form_.head_dim_key.empty() && keys != static_cast<double>(width)) {
      different_width("attention.key_length", static_cast<double>(width), keys);
    }
    head_dim_ = static_cast<std::int64_t>(keys);
    if (!form_.head_dim_key.empty()) {
      config_[form_.head_dim_key] = head_dim_;
    }
    if (form_.scores_by_width > 0) {
      config_["query_pre_attn_scalar"] =
          size_of("block_count") == form_.scores_by_width ? width : head_dim_;
    }
  }

  [[noreturn]] void different_width(const char* field, double expected, double got) const {
    fields_.wrong(
        own(field),
        fmt::format("it differs from the width of a head (expected {}, got {})", expected, got));
  }

  void read_windows() {
    const std::int64_t layers = size_of("block_count");
    if (form_.windows_with > 0 && layers != form_.windows_with) {
      fields_.any(own(pattern_field));
      config_[form_.keys.at(window_field)] = Json();
      config_["layer_types"] = for_each_layer(Json::array({full_layer}));
      return;
    }
    if (!form_.layer_types) {
      return;
    }
    const Json* const field = fields_.any(own(pattern_field));
    if (field == nullptr) {
      return;  // the family knows which
    }
    Json types = Json::array();
    if (field->contains("values")) {
      for (const Json& one : (*field)["values"]) {
        types.push_back(one.is_boolean() && one.get<bool>() ? window_layer : full_layer);
      }
    } else {
      const auto period = static_cast<std::int64_t>(fields_.number(own(pattern_field)).value_or(0));
      for (std::int64_t layer = 0; layer < shown_layers(); ++layer) {
        // 0: all layers have a window.
        const bool has_window = period <= 0 || layer % period < period - 1;
        types.push_back(has_window ? window_layer : full_layer);
      }
    }
    config_["layer_types"] = std::move(types);
  }

  void read_windowed() {
    for (const auto& [field, keys] : form_.windowed) {
      const Json* const found = fields_.any(own(field));
      if (found == nullptr) {
        fields_.wrong(own(field), "is missing");
      }
      if (found->contains("value")) {
        config_[keys.first] = (*found)["value"];
        continue;
      }
      const Json types = config_.value("layer_types", Json::array());
      for (std::int64_t layer = 0; layer < shown_layers(); ++layer) {
        const bool has_window =
            layer < std::ssize(types) && types[static_cast<std::size_t>(layer)] == window_layer;
        const Json value = value_of_layer(field, layer);
        const Json& same =
            config_.emplace(has_window ? keys.first : keys.second, value).first.value();
        if (same != value) {
          fields_.wrong(own(field), fmt::format("layers of one kind differ in it (got {} and {})",
                                                shown(same.dump(), 40), shown(value.dump(), 40)));
        }
      }
      config_.emplace(keys.first, config_.value(keys.second, Json()));
    }
  }

  /// The widths of feed-forward parts: one, or twice as much in the last layers.
  void read_widths() {
    if (form_.wide_shared.empty()) {
      return;
    }
    const std::string field = "feed_forward_length";
    const std::int64_t layers = shown_layers();
    const auto shared = static_cast<std::int64_t>(std::clamp<double>(
        fields_.number(own(shared_field)).value_or(0), 0, static_cast<double>(layers)));
    const std::int64_t own_keys = layers - shared;
    const Json first = layers > 0 ? value_of_layer(field, 0) : Json();
    if (!first.is_number() || first.get<double>() < 1 || first.get<double>() > 0x1p40) {
      fields_.wrong(own(field), "it is not a size");
    }
    const auto width = first.get<double>();
    bool wide = false;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const Json value = value_of_layer(field, layer);
      const bool is_wide = layer >= own_keys && value == 2 * width;
      if (value != width && !is_wide) {
        fields_.wrong(own(field), fmt::format("layers differ in it (got {} and {})", width,
                                              shown(value.dump(), 40)));
      }
      wide = wide || is_wide;
    }
    if (wide && value_of_layer(field, own_keys) == width) {
      fields_.wrong(own(field), "only some of the layers that share keys are twice as wide");
    }
    config_[width_key()] = static_cast<std::int64_t>(width);
    config_[form_.wide_shared] = wide;
  }
  const std::string& width_key() const { return form_.sizes.at("feed_forward_length"); }

  void read_scaling() {
    // A factor without a type divides positions, as in ggml's programs; older files name it so.
    const double factor = fields_.number(own("rope.scaling.factor"))
                              .value_or(fields_.number(own("rope.scale_linear")).value_or(1));
    const std::string kind =
        fields_.text(own("rope.scaling.type"), factor == 1 || factor == 0 ? "none" : "linear");
    const std::optional<double> original =
        fields_.number(own("rope.scaling.original_context_length"));
    const double low = fields_.number(own("rope.scaling.yarn_beta_slow")).value_or(yarn_slow);
    const double high = fields_.number(own("rope.scaling.yarn_beta_fast")).value_or(yarn_fast);
    const double amplitude = fields_.number(own("rope.scaling.attn_factor")).value_or(1);
    const std::optional<double> log_scale = fields_.number(own(log_field));
    const auto positions = static_cast<std::int64_t>(
        original.value_or(static_cast<double>(size_of("context_length"))));
    const bool has_long = form_.long_factors && file_.contains(std::string(long_rows));
    if (amplitude != 1 && !has_long) {
      fields_.wrong(own("rope.scaling.attn_factor"), "it is not supported (expected 1)");
    }
    if (form_.pair_factors) {
      read_pair_factors();
    } else if (file_.contains(std::string(rope_factors))) {
      read_llama3(original.value_or(llama3_positions));
    } else if (has_long) {
      read_long_factors(amplitude, positions);
    } else if (kind == "linear") {
      config_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
    } else if (kind == "yarn") {
      config_["rope_scaling"] = {{"rope_type", "yarn"},
                                 {"factor", factor},
                                 {"beta_slow", low},
                                 {"beta_fast", high},
                                 {"original_max_position_embeddings", positions}};
      if (log_scale) {
        config_["rope_scaling"]["mscale"] = shortest(*log_scale / form_.log_share);
        config_["rope_scaling"]["mscale_all_dim"] = shortest(*log_scale / form_.log_share);
      }
      for (const auto& [key, json] : form_.config) {
        if (key.starts_with(rope_part)) {
          config_["rope_scaling"][key.substr(rope_part.size())] = value_of(json);
        }
      }
    } else if (kind != "none") {
      fields_.wrong(own("rope.scaling.type"),
                    fmt::format("'{}' is not supported", shown(kind, 40)));
    }
  }

  /// rope_parameters have the part of a head that is rotated, and then all of it.
  void name_share() {
    Json rope = config_.value("rope_scaling", Json{{"rope_type", "default"}});
    config_.erase("rope_scaling");
    rope["rope_theta"] = config_[form_.rope_key];
    config_.erase(form_.rope_key);
    rope["partial_rotary_factor"] = share_;
    config_["rope_parameters"] = std::move(rope);
  }

  /// rope_parameters have the embedding of layers with a window, which is not scaled, and of
  /// others.
  void name_layers() {
    const double theta = config_[form_.rope_key].get<double>();
    Json full = config_.value("rope_scaling", Json{{"rope_type", "default"}});
    full["rope_theta"] = theta;
    config_.erase("rope_scaling");
    config_.erase(form_.rope_key);
    const Json local = {{"rope_type", "default"},
                        {"rope_theta", fields_.number(own(local_theta_field)).value_or(theta)}};
    config_["rope_parameters"] = {{full_layer, std::move(full)}, {window_layer, local}};
  }

  /// The quotient of two numbers of f32, as it was meant.
  static double shortest(double value) {
    return parse_json(fmt::format("[{}]", static_cast<float>(value)))[0].get<double>();
  }

  /// Pairs with a factor that no position reaches are not rotated; they follow the others.
  void read_pair_factors() {
    const std::vector<double> stored = file_.contains(std::string(rope_factors))
                                           ? to_doubles(file_.read(std::string(rope_factors)))
                                           : std::vector<double>();
    const auto rotated = std::ranges::find_if(stored, [](double one) { return one != 1; });
    const bool fits = !stored.empty() && std::ranges::all_of(rotated, stored.end(), [](double one) {
      return one > pair_factor / 2;
    });
    if (!fits) {
      fail_input({.thing = file_.path(),
                  .wrong = fmt::format("tensor '{}' does not tell the pairs that are rotated from "
                                       "those that are not (expected 1, and then {})",
                                       rope_factors, pair_factor)});
    }
    config_["rope_scaling"] = {
        {"rope_type", "proportional"},
        {"partial_rotary_factor",
         static_cast<double>(rotated - stored.begin()) / static_cast<double>(stored.size())}};
  }

  /// The parameters are found from the factors, or the file is refused.
  void read_llama3(double original) {
    const std::vector<double> stored = to_doubles(file_.read(std::string(rope_factors)));
    const double factor = stored.empty() ? 1 : *std::ranges::max_element(stored);
    const std::vector<float> expected =
        llama3_factors(head_dim_, config_[form_.rope_key].get<double>(), factor, llama3_low,
                       llama3_high, original);
    const bool same = std::ranges::equal(
        stored, expected, [](double x, double y) { return std::abs(x - y) <= 1e-3 * y; });
    if (!same || !form_.llama3_factors) {
      fail_input(
          {.thing = file_.path(),
           .wrong = fmt::format(
               "tensor '{}' has factors of the rotary embedding that are not those of Llama 3",
               rope_factors)});
    }
    config_["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", factor},
        {"low_freq_factor", llama3_low},
        {"high_freq_factor", llama3_high},
        {"original_max_position_embeddings", static_cast<std::int64_t>(original)}};
  }

  void read_long_factors(double amplitude, std::int64_t positions) {
    const auto numbers = [&](std::string_view name) {
      Json list = Json::array();
      for (const double one : to_doubles(file_.read(std::string(name)))) {
        list.push_back(shortest(one));
      }
      return list;
    };
    config_["rope_scaling"] = {{"rope_type", "longrope"},
                               {"long_factor", numbers(long_rows)},
                               {"short_factor", numbers(short_rows)},
                               {"original_max_position_embeddings", positions},
                               {"attention_factor", amplitude}};
  }

  void read_tokens() {
    const auto token = [&](const char* name) {
      const Json* const value = fields_.find(std::string("tokenizer.ggml.") + name);
      return value == nullptr ? Json() : *value;
    };
    config_["bos_token_id"] = token("bos_token_id");
    config_["pad_token_id"] = token("padding_token_id");
    Json ends = Json::array();
    for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
      if (Json id = token(name); !id.is_null() && std::ranges::find(ends, id) == ends.end()) {
        ends.push_back(std::move(id));
      }
    }
    config_["eos_token_id"] = ends.empty() ? Json() : ends.size() == 1 ? ends[0] : ends;
  }

  const TensorSource& file_;
  FileFields fields_;
  ReadFamily family_;
  const GgufForm& form_;
  Json config_;
  std::int64_t head_dim_ = 0;
  double share_ = 1;  // of a head, that is rotated
  std::int64_t further_layers_ =
      0;  // after the others, by which tokens after the next are predicted
};

}  // namespace

GgufModel read_gguf_model(const TensorSource& file) { return ConfigReader(file).read(); }

bool is_rotary_tensor(std::string_view name) {
  return name == rope_factors || name == long_rows || name == short_rows;
}

}  // namespace tessera::hub
