module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
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

namespace tessera::hub {
namespace {

using Json = nlohmann::json;
using models::GgufForm;

constexpr std::string_view rope_factors = "rope_freqs.weight";
constexpr std::string_view long_rows = "rope_factors_long.weight";
constexpr std::string_view short_rows = "rope_factors_short.weight";
/// The beginning of keys of GgufForm::config that are parts of rope_scaling.
constexpr std::string_view rope_part = "rope_scaling.";
/// The key of the base of layers with a window, where rope_parameters tell them apart.
constexpr const char* local_theta = "rope_parameters.sliding_attention.rope_theta";
constexpr const char* local_theta_field = "rope.freq_base_swa";
constexpr const char* window_field = "attention.sliding_window";
constexpr const char* pattern_field = "attention.sliding_window_pattern";
constexpr const char* window_layer = "sliding_attention";
constexpr const char* full_layer = "full_attention";
constexpr std::int64_t most_layers = 10000;
/// How many layers, after the others, predict tokens after the next one.
constexpr const char* further_field = "nextn_predict_layers";

// The bounds of llama3, which files do not say: those of all its models.
constexpr double llama3_low = 1;
constexpr double llama3_high = 4;
constexpr double llama3_positions = 8192;
// The bounds of yarn where nothing is said.
constexpr double yarn_slow = 1;
constexpr double yarn_fast = 32;
// Files of latent attention have a tenth of what the logarithm of the scaling is multiplied by.
constexpr double log_share = 0.1;

/// llama3's factors of the wavelengths, in float32 as ggml's converter computes them.
std::vector<float> llama3_factors(std::int64_t width, double theta, double factor, double low,
                                  double high, double original) {
  std::vector<float> factors;
  for (std::int64_t i = 0; i < width; i += 2) {
    const double wavelength =
        2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / static_cast<double>(width));
    const double smooth = (original / wavelength - low) / (high - low);
    const double value = wavelength < original / high  ? 1
                         : wavelength > original / low ? factor
                                                       : 1 / ((1 - smooth) / factor + smooth);
    factors.push_back(static_cast<float>(value));
  }
  return factors;
}

/// The keys of a sum, "a + b".
std::vector<std::string> summands(const std::string& sum) {
  constexpr std::string_view plus = " + ";
  std::vector<std::string> keys;
  std::size_t begin = 0;
  for (std::size_t at = sum.find(plus); at != std::string::npos; at = sum.find(plus, begin)) {
    keys.push_back(sum.substr(begin, at - begin));
    begin = at + plus.size();
  }
  keys.push_back(sum.substr(begin));
  return keys;
}

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
int conditions(FileFields& fields, const GgufForm& form) {
  const auto own = [&](const std::string& name) { return form.architecture + "." + name; };
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
    known.insert(form.architecture);
    if (form.architecture != architecture) {
      continue;
    }
    if (const int count = conditions(fields, form); count > most) {
      most = count;
      best = ReadFamily{name, std::move(form)};
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
    config_ = {{"model_type", family_.name}, {form_.rope_key, form_.rope_theta}};
    for (const auto& [key, json] : form_.config) {
      if (!key.starts_with(rope_part)) {
        config_[key] = value_of(json);
      }
    }
    read_sizes();
    for (const auto& [key, json] : form_.config) {
      if (config_.contains(key) && config_[key].is_array()) {
        config_[key] = for_each_layer(config_[key]);
      }
    }
    read_keys();
    if (form_.keys.contains(further_field)) {
      further_layers_ = static_cast<std::int64_t>(fields_.number(own(further_field)).value_or(0));
      config_[form_.keys.at(further_field)] = 0;  // they are not read
    }
    config_[form_.vocab_key] = info("token_embd.weight").shape[0];
    if (!form_.config.contains(form_.tied_key)) {
      config_[form_.tied_key] = !file_.contains("output.weight");
    }
    read_heads();
    read_windows();
    read_scaling();
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
    check_fields();
    read_tokens();
    const DType dtype = info("token_embd.weight").dtype;
    config_["torch_dtype"] = dtype == DType::f16    ? "float16"
                             : dtype == DType::bf16 ? "bfloat16"
                                                    : "float32";
    for (const char* name : {"vocab_size", "rope.scaling.finetuned"}) {
      fields_.find(own(name));
    }
    fields_.finish(own(""));
    return {.config = json_text(config_), .further_layers = further_layers_};
  }

 private:
  std::string own(std::string_view name) const {
    return fmt::format("{}.{}", form_.architecture, name);
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

  std::int64_t size_of(const char* field) const {
    const auto size = form_.sizes.find(field);
    const auto key = form_.keys.find(field);
    const auto value = size != form_.sizes.end() ? config_.find(size->second)
                       : key != form_.keys.end() ? config_.find(summands(key->second)[0])
                                                 : config_.end();
    return value != config_.end() && value->is_number() ? value->get<std::int64_t>() : 0;
  }

  void read_sizes() {
    for (const auto& [field, key] : form_.sizes) {
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
    if (const auto base = fields_.number(own("rope.freq_base"))) {
      config_[form_.rope_key] = *base;
    }
  }

  void read_keys() {
    for (const auto& [field, key] : form_.keys) {
      const Json* const value = key == local_theta ? nullptr : fields_.find(own(field));
      if (value != nullptr && summands(key).size() == 1) {
        // A window of 0 is none.
        config_[key] =
            *value == 0 && value->is_number_integer() ? Json() : FileFields::plain(*value);
      }
    }
    for (const auto& [field, sum] : form_.keys) {
      if (summands(sum).size() > 1) {
        read_sum(field, summands(sum));
      }
    }
  }

  void read_sum(const std::string& field, const std::vector<std::string>& keys) {
    const std::optional<double> value = fields_.number(own(field));
    if (!value) {
      return;
    }
    double rest = *value;
    std::string unknown;
    for (const std::string& key : keys) {
      const auto known = config_.find(key);
      if (known != config_.end() && !known->is_string()) {
        rest -= known->is_number() ? known->get<double>() : 0;
      } else if (unknown.empty()) {
        unknown = key;
      } else {
        fields_.wrong(own(field), fmt::format("the file says neither {} nor {}", unknown, key));
      }
    }
    if (unknown.empty() ? rest != 0 : rest < 0 || rest > 0x1p40 || rest != std::floor(rest)) {
      fields_.wrong(own(field),
                    fmt::format("it is not the sum of {} (got {})", join_words(keys), *value));
    }
    if (!unknown.empty()) {
      config_[unknown] = static_cast<std::int64_t>(rest);
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
        form_.keys.contains("attention.key_length")) {
      return;  // heads of another form
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
    const std::optional<double> log_scale = fields_.number(own("rope.scaling.yarn_log_multiplier"));
    const auto positions = static_cast<std::int64_t>(
        original.value_or(static_cast<double>(size_of("context_length"))));
    const bool has_long = form_.long_factors && file_.contains(std::string(long_rows));
    if (amplitude != 1 && !has_long) {
      fields_.wrong(own("rope.scaling.attn_factor"), "it is not supported (expected 1)");
    }
    if (file_.contains(std::string(rope_factors))) {
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
        config_["rope_scaling"]["mscale"] = shortest(*log_scale / log_share);
        config_["rope_scaling"]["mscale_all_dim"] = shortest(*log_scale / log_share);
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
                               {"attention_factor", amplitude}};
    config_["original_max_position_embeddings"] = positions;
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

GgufModel read_gguf_model(const TensorSource& file) { return ConfigReader(file).read(); }

GgufFields gguf_fields(const GgufForm& form, const GgufContent& content) {
  return FieldWriter(form, content).write();
}

bool is_rotary_tensor(std::string_view name) {
  return name == rope_factors || name == long_rows || name == short_rows;
}

}  // namespace tessera::hub
