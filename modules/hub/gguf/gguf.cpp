module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <numbers>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.ggml;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.checkpoint;
import tessera.exported;
import :quantized_folder;

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A field of an architecture, without its name, and the key of config.json.
struct KeyPair {
  const char* gguf;
  const char* hub;
  bool whole = true;  // a size; else a number
};

struct NamePair {
  std::string_view gguf;
  std::string_view hub;
};

const std::vector<NamePair> usual_norms = {{"attn_norm", "input_layernorm"},
                                           {"ffn_norm", "post_attention_layernorm"}};
/// Norms before and after each part.
const std::vector<NamePair> four_norms = {{"attn_norm", "input_layernorm"},
                                          {"post_attention_norm", "post_attention_layernorm"},
                                          {"ffn_norm", "pre_feedforward_layernorm"},
                                          {"post_ffw_norm", "post_feedforward_layernorm"}};

/// What ggml's programs know a family of models as.
struct Architecture {
  std::string_view name;
  std::vector<std::string_view> families;  // model_type; the first one is read
  bool pairs = false;        // rows of queries and keys in pairs that are rotated together
  bool norm_offset = false;  // norms are stored with the 1 that is added to them
  bool fused = false;
  std::vector<NamePair> norms = usual_norms;
  std::vector<NamePair> names = {};  // of modules that Llama's folders name otherwise
  std::vector<NamePair> biases =
      {};  // a tensor of the first layer; config.json says if it is there
  std::vector<KeyPair> keys = {};
  KeyPair eps = {"attention.layer_norm_rms_epsilon", "rms_norm_eps", false};
  double rope_theta = 10000;         // where the file does not say
  std::int64_t scores_by_width = 0;  // with so many layers, scores are divided by dim / heads
};

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all = {
      {.name = "llama",
       .families = {"llama", "mistral"},
       .pairs = true,
       .biases = {{"attn_q", "attention_bias"}, {"ffn_gate", "mlp_bias"}}},
      {.name = "qwen2", .families = {"qwen2"}},
      {.name = "qwen3", .families = {"qwen3"}},
      {.name = "gemma2",
       .families = {"gemma2"},
       .norm_offset = true,
       .norms = four_norms,
       .keys = {{"attention.sliding_window", "sliding_window"},
                {"attn_logit_softcapping", "attn_logit_softcapping", false},
                {"final_logit_softcapping", "final_logit_softcapping", false}},
       .scores_by_width = 46},
      {.name = "gemma3",
       .families = {"gemma3_text"},
       .norm_offset = true,
       .norms = four_norms,
       .keys = {{"attention.sliding_window", "sliding_window"},
                {"rope.freq_base_swa", "rope_local_base_freq", false}},
       .rope_theta = 1e6,
       .scores_by_width = 62},
      {.name = "gemma",
       .families = {"gemma"},
       .norm_offset = true,
       .biases = {{"attn_q", "attention_bias"}}},
      {.name = "granite",
       .families = {"granite"},
       .pairs = true,
       .biases = {{"attn_q", "attention_bias"}, {"ffn_gate", "mlp_bias"}},
       .keys = {{"attention.scale", "attention_multiplier", false},
                {"embedding_scale", "embedding_multiplier", false},
                {"residual_scale", "residual_multiplier", false},
                {"logit_scale", "logits_scaling", false}}},
      {.name = "olmo2",
       .families = {"olmo2"},
       .norms = {{"post_attention_norm", "post_attention_layernorm"},
                 {"post_ffw_norm", "post_feedforward_layernorm"}},
       .biases = {{"attn_q", "attention_bias"}}},
      {.name = "seed_oss",
       .families = {"seed_oss"},
       .norms = {{"attn_norm", "input_layernorm"},
                 {"post_attention_norm", "post_attention_layernorm"}},
       .biases = {{"attn_q", "attention_bias"},
                  {"attn_output", "attention_out_bias"},
                  {"ffn_gate", "mlp_bias"}}},
      {.name = "ernie4_5",
       .families = {"ernie4_5"},
       .biases = {{"attn_q", "use_bias"}},
       .rope_theta = 500000},
      {.name = "starcoder2",
       .families = {"starcoder2"},
       .names = {{"ffn_up", "mlp.c_fc"}, {"ffn_down", "mlp.c_proj"}},
       .biases = {{"attn_q", "use_bias"}},
       .keys = {{"attention.sliding_window", "sliding_window"}},
       .eps = {"attention.layer_norm_epsilon", "norm_epsilon", false}},
      {.name = "phi3",
       .families = {"phi3"},
       .fused = true,
       .keys = {{"attention.sliding_window", "sliding_window"}}}};
  return all;
}

constexpr std::array<KeyPair, 7> common_keys = {{{"context_length", "max_position_embeddings"},
                                                 {"embedding_length", "hidden_size"},
                                                 {"feed_forward_length", "intermediate_size"},
                                                 {"block_count", "num_hidden_layers"},
                                                 {"attention.head_count", "num_attention_heads"},
                                                 {"attention.head_count_kv", "num_key_value_heads"},
                                                 {"rope.freq_base", "rope_theta", false}}};

constexpr std::string_view hub_layer = "model.layers.";
constexpr std::string_view gguf_layer = "blk.";
constexpr std::array<NamePair, 3> outer_names = {
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}}};
constexpr const char* rope_factors = "rope_freqs.weight";

std::vector<NamePair> layer_names(const Architecture& architecture) {
  std::vector<NamePair> names = {
      {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},
      {"attn_qkv", "self_attn.qkv_proj"},
      {"attn_output", "self_attn.o_proj"},
      {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"},
      {"ffn_gate", "mlp.gate_proj"},
      {"ffn_down", "mlp.down_proj"},
      {"ffn_up", architecture.fused ? "mlp.gate_up_proj" : "mlp.up_proj"}};
  names.insert(names.begin(), architecture.norms.begin(), architecture.norms.end());
  names.insert(names.begin(), architecture.names.begin(), architecture.names.end());
  return names;
}

/// The name of a tensor on the other side; nothing where it has none. `from` and `to` are the
/// sides.
std::optional<std::string> renamed(const Architecture& architecture, std::string_view name,
                                   std::string_view NamePair::* from,
                                   std::string_view NamePair::* to) {
  const bool to_hub = to == &NamePair::hub;
  const std::string_view begin = to_hub ? gguf_layer : hub_layer;
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view kind = name.substr(dot);
  std::string_view own = name.substr(0, dot);
  std::string result;
  const auto find = [&](const auto& names) -> std::optional<std::string> {
    const auto found = std::ranges::find(names, own, from);
    return found == names.end() || (kind != ".weight" && kind != ".bias")
               ? std::nullopt
               : std::optional(fmt::format("{}{}{}", result, (*found).*to, kind));
  };
  if (!own.starts_with(begin)) {
    return find(outer_names);
  }
  own.remove_prefix(begin.size());
  const std::size_t digits = std::min(own.find_first_not_of("0123456789"), own.size());
  if (digits == 0 || digits == own.size() || own[digits] != '.') {
    return std::nullopt;
  }
  result = fmt::format("{}{}.", to_hub ? hub_layer : gguf_layer, own.substr(0, digits));
  own.remove_prefix(digits + 1);
  return find(layer_names(architecture));
}

/// The extents of a head's rows in the order of one side: [2, width / 2] as transformers has them,
/// the first halves of all pairs before the second ones.
struct RowOrder {
  std::int64_t heads = 0;  // 0: the rows stay
  std::int64_t outer = 0;  // of the side that is read
  std::int64_t inner = 0;
};

/// All rows of the heads of which some rows are read.
struct HeadRows {
  HeadRows(const RowOrder& order, std::int64_t row, std::int64_t rows) : order(order) {
    const std::int64_t width = order.outer * order.inner;
    begin = row / width * width;
    count = (row + rows + width - 1) / width * width - begin;
  }

  /// These rows in the order of the other side.
  Tensor ordered(const Tensor& rows) const {
    Dims divided{count / (order.outer * order.inner), order.outer, order.inner};
    for (int d = 1; d < rows.dims(); ++d) {
      divided.push_back(rows.size(d));
    }
    return ops::reshape(ops::transpose(ops::view(rows, divided), 1, 2), rows.shape());
  }

  RowOrder order;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// Tensors of another source with other names, rows in another order, or something added.
class ConvertedSource final : public TensorSource {
 public:
  struct Entry {
    std::string from = {};
    RowOrder rows = {};
    double added = 0;
    std::string stored_type = {};
    Tensor values = {};  // in the place of a tensor of the source
  };

  ConvertedSource(std::shared_ptr<const TensorSource> from, std::string meta)
      : TensorSource(from->path()), from_(std::move(from)) {
    meta_ = std::move(meta);
    files_ = from_->files();
  }

  void add(const std::string& name, const TensorInfo& info, Entry entry) {
    tensors_.emplace(name, info);
    entries_.emplace(name, std::move(entry));
  }

  std::uint64_t bytes_read() const override { return from_->bytes_read(); }
  std::string stored_type(const std::string& name) const override {
    info(name);  // throws for a name that is not there
    return entries_.at(name).stored_type;
  }
  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override {
    info(name);
    const Entry& entry = entries_.at(name);
    if (entry.from.empty() || entry.added != 0) {
      return {};
    }
    if (entry.rows.heads == 0) {
      return from_->stored_rows(entry.from, row, rows);
    }
    const HeadRows heads(entry.rows, row, rows);
    const Tensor whole = from_->stored_rows(entry.from, heads.begin, heads.count);
    return whole ? ops::narrow(heads.ordered(whole), 0, row - heads.begin, rows) : whole;
  }

 private:
  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const Entry& entry = entries_.at(name);
    if (entry.from.empty()) {
      Tensor part = entry.values;
      for (int d = 0; d < box.shape.size(); ++d) {
        part = ops::narrow(part, d, box.offset[d], box.shape[d]);
      }
      ops::copy_(into, part);
    } else if (entry.rows.heads > 0) {
      copy_rows(entry, box, into);
    } else if (entry.added != 0) {
      const Tensor values = empty(box.shape, DType::f32);
      from_->read(entry.from, box, values);
      ops::copy_(into, ops::add_scalar(values, entry.added));
    } else {
      from_->read(entry.from, box, into);
    }
  }

  /// Reads the heads that have rows of the box, whole.
  void copy_rows(const Entry& entry, const LocalPart& box, const Tensor& into) const {
    const HeadRows heads(entry.rows, box.offset[0], box.shape[0]);
    LocalPart whole = box;
    whole.offset[0] = heads.begin;
    whole.shape[0] = heads.count;
    const Tensor values = empty(whole.shape, into.dtype());
    from_->read(entry.from, whole, values);
    ops::copy_(into,
               ops::narrow(heads.ordered(values), 0, box.offset[0] - heads.begin, box.shape[0]));
  }

  std::shared_ptr<const TensorSource> from_;
  std::map<std::string, Entry> entries_;
};

/// The order of rows of a tensor, by its name in the folder. `to_hub`: rows of the file are read.
RowOrder row_order(const Architecture& architecture, std::string_view hub, std::int64_t rows,
                   std::int64_t width, bool to_hub) {
  const bool rotated = hub.find("self_attn.q_proj.") != std::string_view::npos ||
                       hub.find("self_attn.k_proj.") != std::string_view::npos;
  if (!architecture.pairs || !rotated || width < 2 || width % 2 != 0 || rows % width != 0) {
    return {};
  }
  return {.heads = rows / width, .outer = to_hub ? width / 2 : 2, .inner = to_hub ? 2 : width / 2};
}

/// Added to norms on the way to the folder.
double norm_offset(const Architecture& architecture, std::string_view hub) {
  return architecture.norm_offset && hub.ends_with("norm.weight") ? -1 : 0;
}

/// Fields of a file, by their names; those that were asked for are known.
class FileFields {
 public:
  FileFields(const TensorSource& file)
      : fields_(parse_json(file.meta()).value("gguf", Json::object())), path_(file.path()) {}

  const Json* find(const std::string& name) {
    known_.insert(name);
    const auto at = fields_.find(name);
    if (at == fields_.end()) {
      return nullptr;
    }
    if (!at->contains("value")) {
      wrong(name, "a list, as if layers differed, is not supported");
    }
    return &(*at)["value"];
  }

  [[noreturn]] void wrong(const std::string& name, const std::string& what) const {
    fail_input({.thing = fmt::format("{}: field '{}'", path_, shown(name, 80)), .wrong = what});
  }

  std::optional<double> number(const std::string& name) {
    const Json* const value = find(name);
    if (value != nullptr && !value->is_number()) {
      wrong(name, "it is not a number");
    }
    // Numbers are stored in f32: 1e-5 is meant, not its nearest value.
    return value == nullptr ? std::nullopt
           : value->is_number_float()
               ? std::optional(
                     parse_json(fmt::format("[{}]", value->get<float>()))[0].get<double>())
               : std::optional(value->get<double>());
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

const Architecture& architecture_of(FileFields& fields) {
  if (const double parts = fields.number("split.count").value_or(1); parts > 1) {
    fields.wrong("split.count", fmt::format("it is one of {} parts of a model; merge them with "
                                            "llama.cpp's gguf-split",
                                            parts));
  }
  const std::string name = fields.text("general.architecture", "");
  const auto found = std::ranges::find(architectures(), name, &Architecture::name);
  if (found == architectures().end()) {
    std::vector<std::string> known;
    for (const Architecture& one : architectures()) {
      known.emplace_back(one.name);
    }
    fields.wrong("general.architecture", fmt::format("'{}' is not supported (only {})",
                                                     shown(name, 40), join_words(known)));
  }
  return *found;
}

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

// The bounds of llama3, which files do not say: those of all its models.
constexpr double llama3_low = 1;
constexpr double llama3_high = 4;
constexpr double llama3_positions = 8192;

/// The reading of a file's fields as a config.json.
class ConfigReader {
 public:
  explicit ConfigReader(const TensorSource& file)
      : file_(file), fields_(file), architecture_(architecture_of(fields_)) {}

  Json read() {
    config_ = {{"model_type", architecture_.families.front()},
               {"rope_theta", architecture_.rope_theta}};
    for (const KeyPair& key : common_keys) {
      read_key(key, std::string_view(key.hub) != "rope_theta" &&
                        std::string_view(key.hub) != "num_key_value_heads");
    }
    read_key(architecture_.eps, true);
    for (const KeyPair& key : architecture_.keys) {
      read_key(key, false);
    }
    config_.emplace("num_key_value_heads", config_["num_attention_heads"]);
    config_["vocab_size"] = info("token_embd.weight").shape[0];
    config_["tie_word_embeddings"] = !file_.contains("output.weight");
    read_heads();
    read_scaling();
    for (const NamePair& bias : architecture_.biases) {
      config_[std::string(bias.hub)] = file_.contains(fmt::format("blk.0.{}.bias", bias.gguf));
    }
    read_tokens();
    const DType dtype = info("token_embd.weight").dtype;
    config_["torch_dtype"] = dtype == DType::f16    ? "float16"
                             : dtype == DType::bf16 ? "bfloat16"
                                                    : "float32";
    for (const char* name : {"vocab_size", "rope.scaling.finetuned"}) {
      fields_.find(own(name));
    }
    fields_.finish(own(""));
    return config_;
  }

 private:
  std::string own(std::string_view name) const {
    return fmt::format("{}.{}", architecture_.name, name);
  }

  const TensorInfo& info(const std::string& name) const {
    const TensorInfo& found = file_.info(name);
    if (found.shape.size() != 2) {
      fail_input(
          {.thing = file_.path(), .wrong = fmt::format("tensor '{}' is not a matrix", name)});
    }
    return found;
  }

  void read_key(const KeyPair& key, bool needed) {
    const std::optional<double> value = fields_.number(own(key.gguf));
    if (!value && needed) {
      fields_.wrong(own(key.gguf), "is missing");
    }
    if (!value) {
      return;
    }
    if (key.whole && (*value < 0 || *value > 0x1p40 || *value != std::floor(*value))) {
      fields_.wrong(own(key.gguf), fmt::format("it is not a size (got {})", *value));
    }
    // No size is 0: a window of 0 is none.
    config_[key.hub] = !key.whole    ? Json(*value)
                       : *value == 0 ? Json()
                                     : Json(static_cast<std::int64_t>(*value));
  }

  std::int64_t size(const char* key) const {
    return config_[key].is_number() ? config_[key].get<std::int64_t>() : 0;
  }

  void read_heads() {
    const std::int64_t dim = size("hidden_size");
    const std::int64_t heads = size("num_attention_heads");
    if (heads <= 0) {
      fields_.wrong(own("attention.head_count"), "is not positive");
    }
    const std::int64_t width = dim / heads;
    const double keys =
        fields_.number(own("attention.key_length")).value_or(static_cast<double>(width));
    for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
      if (const double other = fields_.number(own(name)).value_or(keys); other != keys) {
        fields_.wrong(
            own(name),
            fmt::format("it differs from the width of a head (expected {}, got {})", keys, other));
      }
    }
    if (keys < 1 || keys > 0x1p24) {
      fields_.wrong(own("attention.key_length"), "it is not the width of a head");
    }
    config_["head_dim"] = static_cast<std::int64_t>(keys);
    if (architecture_.scores_by_width > 0) {
      config_["query_pre_attn_scalar"] = size("num_hidden_layers") == architecture_.scores_by_width
                                             ? dim / heads
                                             : static_cast<std::int64_t>(keys);
    }
  }

  void read_scaling() {
    // A factor without a type divides positions, as in ggml's programs; older files name it so.
    const double factor = fields_.number(own("rope.scaling.factor"))
                              .value_or(fields_.number(own("rope.scale_linear")).value_or(1));
    const std::string kind =
        fields_.text(own("rope.scaling.type"), factor == 1 || factor == 0 ? "none" : "linear");
    const std::optional<double> original =
        fields_.number(own("rope.scaling.original_context_length"));
    const double low = fields_.number(own("rope.scaling.yarn_beta_slow")).value_or(1);
    const double high = fields_.number(own("rope.scaling.yarn_beta_fast")).value_or(32);
    if (const double amplitude = fields_.number(own("rope.scaling.attn_factor")).value_or(1);
        amplitude != 1) {
      fields_.wrong(own("rope.scaling.attn_factor"), "it is not supported (expected 1)");
    }
    if (file_.contains(rope_factors)) {
      read_llama3(original.value_or(llama3_positions));
    } else if (kind == "linear") {
      config_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
    } else if (kind == "yarn") {
      config_["rope_scaling"] = {{"rope_type", "yarn"},
                                 {"factor", factor},
                                 {"beta_slow", low},
                                 {"beta_fast", high},
                                 {"original_max_position_embeddings",
                                  static_cast<std::int64_t>(original.value_or(
                                      static_cast<double>(size("max_position_embeddings"))))}};
    } else if (kind != "none") {
      fields_.wrong(own("rope.scaling.type"),
                    fmt::format("'{}' is not supported", shown(kind, 40)));
    }
  }

  /// The parameters are found from the factors, or the file is refused.
  void read_llama3(double original) {
    const std::int64_t width = size("head_dim");
    const std::vector<double> stored = to_doubles(file_.read(rope_factors));
    const double factor = stored.empty() ? 1 : *std::ranges::max_element(stored);
    const std::vector<float> expected = llama3_factors(width, config_["rope_theta"].get<double>(),
                                                       factor, llama3_low, llama3_high, original);
    const bool same = std::ranges::equal(
        stored, expected, [](double x, double y) { return std::abs(x - y) <= 1e-3 * y; });
    if (!same || !architecture_.pairs) {
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
  const Architecture& architecture_;
  Json config_;
};

/// The fields of a file for a config.json.
class FieldWriter {
 public:
  FieldWriter(const Architecture& architecture, const Json& config)
      : architecture_(architecture), config_(config) {}

  Json write(const GgufContent& content) {
    fields_ = content.tokenizer.empty() ? Json::object() : parse_json(content.tokenizer);
    set("general.architecture", "text", architecture_.name);
    set("general.type", "text", "model");
    if (!content.name.empty()) {
      set("general.name", "text", content.name);
    }
    const std::map<std::string, int> file_types = {{"F32", 0},  {"F16", 1},     {"Q4_0", 2},
                                                   {"Q8_0", 7}, {"Q4_K_M", 15}, {"BF16", 32}};
    set("general.file_type", "u32", file_types.at(content.type));
    set("general.quantization_version", "u32", 2);
    for (const KeyPair& key : common_keys) {
      write_key(key);
    }
    write_key(architecture_.eps);
    for (const KeyPair& key : architecture_.keys) {
      write_key(key);
    }
    const Json& width = config_.at("head_dim");
    for (const char* name :
         {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
      set(own(name), "u32", width);
    }
    set(own("vocab_size"), "u32", config_.at("vocab_size"));
    write_scaling();
    return fields_;
  }

  /// The tensor of llama3's factors; nothing for other rotary embeddings.
  std::optional<std::vector<float>> factors() const {
    const Json rope = rope_of();
    if (rope.value("rope_type", "default") != "llama3") {
      return std::nullopt;
    }
    return llama3_factors(config_.at("head_dim").get<std::int64_t>(),
                          config_.at("rope_theta").get<double>(), rope.at("factor").get<double>(),
                          rope.at("low_freq_factor").get<double>(),
                          rope.at("high_freq_factor").get<double>(),
                          rope.at("original_max_position_embeddings").get<double>());
  }

 private:
  std::string own(std::string_view name) const {
    return fmt::format("{}.{}", architecture_.name, name);
  }
  void set(const std::string& name, const char* type, Json value) {
    fields_[name] = {{"type", type}, {"value", std::move(value)}};
  }

  void write_key(const KeyPair& key) {
    const Json value = config_.value(key.hub, Json());
    // A program of ggml needs the window of phi3, and takes 0 for none.
    const bool none = value.is_null();
    if (!none || key.whole) {
      set(own(key.gguf), key.whole ? "u32" : "f32", none ? Json(0) : value);
    }
  }

  /// rope_parameters, of layers without a window where these differ.
  Json rope_of() const {
    const Json rope = config_.value("rope_parameters", Json::object());
    return rope.value("full_attention", rope);
  }

  void write_scaling() {
    const Json rope = rope_of();
    const std::string kind = rope.value("rope_type", "default");
    if (rope.contains("original_max_position_embeddings")) {
      set(own("rope.scaling.original_context_length"), "u32",
          rope["original_max_position_embeddings"]);
    } else if (architecture_.fused) {
      set(own("rope.scaling.original_context_length"), "u32",
          config_.at("max_position_embeddings"));
    }
    if (kind != "linear" && kind != "yarn") {
      return;
    }
    set(own("rope.scaling.type"), "text", kind);
    set(own("rope.scaling.factor"), "f32", rope.at("factor"));
    if (rope.contains("beta_slow")) {
      set(own("rope.scaling.yarn_beta_slow"), "f32", rope["beta_slow"]);
    }
    if (rope.contains("beta_fast")) {
      set(own("rope.scaling.yarn_beta_fast"), "f32", rope["beta_fast"]);
    }
  }

  const Architecture& architecture_;
  const Json& config_;
  Json fields_;
};

/// In which types llama-quantize stores the tensors of a file: vectors are never rounded; what
/// makes logits, and some parts of the layers, have more bits than the others.
/// (src/llama-quant.cpp)
class WrittenTypes {
 public:
  /// `has_head`: logits have a matrix of their own.
  WrittenTypes(std::string type, const Architecture& architecture, const Json& config,
               bool has_head)
      : type_(std::move(type)),
        head_(has_head ? "output.weight" : "token_embd.weight"),
        layers_(config.at("num_hidden_layers").get<std::int64_t>()),
        wide_values_(layers_ == layers_of_70b &&
                     (architecture.name == "llama" || architecture.name == "qwen2") &&
                     config.value("num_attention_heads", 0) !=
                         config.value("num_key_value_heads", 0)) {}

  /// By the name in the file.
  std::string of(const std::string& name, const Dims& shape) const {
    if (shape.size() < 2) {
      return "F32";
    }
    const bool four_bits = type_ == "Q4_0" || type_ == "Q4_K_M";
    const std::string type = four_bits && name == head_ ? "Q6_K"
                             : type_ == "Q4_K_M"        ? of_layer(name)
                                                        : type_;
    return fitting(type, shape[shape.size() - 1]);
  }

  static DType dtype(const std::string& type) {
    return type == "F16" ? DType::f16 : type == "BF16" ? DType::bf16 : DType::f32;
  }

 private:
  static constexpr std::int64_t layers_of_70b = 80;

  std::string of_layer(const std::string& name) const {
    const bool values = name.ends_with(".attn_v.weight") || name.ends_with(".attn_qkv.weight");
    if (!values && !name.ends_with(".ffn_down.weight")) {
      return "Q4_K";
    }
    const std::int64_t layer = std::strtoll(name.c_str() + gguf_layer.size(), nullptr, 10);
    const bool first_or_last = layer < layers_ / 8 || layer >= 7 * layers_ / 8;
    const bool more = first_or_last || (layer - layers_ / 8) % 3 == 2;
    return more ? "Q6_K" : values && wide_values_ ? "Q5_K" : "Q4_K";
  }

  /// Rows that are no whole blocks have a type with smaller ones, or F16.
  static std::string fitting(const std::string& type, std::int64_t row) {
    constexpr std::int64_t block = 32;
    constexpr std::int64_t super_block = 256;
    if (dtype(type) != DType::f32 || type == "F32") {
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

  std::string type_;
  std::string_view head_;
  std::int64_t layers_;
  bool wide_values_;
};

const Architecture& architecture_for(const Json& config, const std::string& where) {
  const std::string family = config.at("model_type").get<std::string>();
  const auto found = std::ranges::find_if(architectures(), [&](const Architecture& one) {
    return std::ranges::find(one.families, family) != one.families.end();
  });
  if (found == architectures().end()) {
    fail_input({.thing = where,
                .wrong = fmt::format("models of the family {} cannot be written as GGUF", family),
                .advice = "export it for transformers"});
  }
  return *found;
}

}  // namespace

std::string gguf_file(const std::string& path) {
  std::error_code ignored;
  if (is_gguf(path)) {
    return path;
  }
  const std::string inside = (fs::path(path) / "model.gguf").string();
  return !fs::exists(fs::path(path) / "config.json", ignored) && is_gguf(inside) ? inside : "";
}

std::string gguf_config(const TensorSource& file) { return json_text(ConfigReader(file).read()); }

OpenedTensors open_hub_tensors(const std::string& path) {
  const std::string named = gguf_file(path);
  OpenedTensors opened = open_tensors(named.empty() ? path : named);
  if (named.empty()) {
    if (exported::is_program(path)) {
      opened.source = exported::program_weights(std::move(opened.source));
    }
    opened.source = decoded_folder(std::move(opened.source));
    return opened;
  }
  const Json config = parse_json(gguf_config(*opened.source));
  FileFields fields(*opened.source);
  const Architecture& architecture = architecture_of(fields);
  const auto width = config.at("head_dim").get<std::int64_t>();
  const std::shared_ptr<const TensorSource> file = std::move(opened.source);
  auto converted = std::make_unique<ConvertedSource>(file, "{}");
  for (const auto& [name, info] : file->tensors()) {
    if (name == rope_factors) {
      continue;  // a part of the config
    }
    const auto hub = renamed(architecture, name, &NamePair::gguf, &NamePair::hub);
    if (!hub) {
      fail_input({.thing = named,
                  .wrong = fmt::format("tensor '{}' is not one of the architecture {}",
                                       shown(name, 80), architecture.name)});
    }
    const std::int64_t rows = info.shape.size() > 0 ? info.shape[0] : 0;
    converted->add(*hub, info,
                   {.from = name,
                    .rows = row_order(architecture, *hub, rows, width, true),
                    .added = norm_offset(architecture, *hub),
                    .stored_type = file->stored_type(name)});
  }
  opened.source = std::move(converted);
  return opened;
}

std::unique_ptr<TensorSource> gguf_tensors(const TensorSource& folder, const GgufContent& content) {
  const Json config = parse_json(content.config);
  const Architecture& architecture = architecture_for(config, folder.path());
  FieldWriter writer(architecture, config);
  const auto width = config.at("head_dim").get<std::int64_t>();
  // Not owned: the folder outlives the result.
  const std::shared_ptr<const TensorSource> from(std::shared_ptr<void>(), &folder);
  auto converted =
      std::make_unique<ConvertedSource>(from, json_text(Json{{"gguf", writer.write(content)}}));
  const WrittenTypes types(content.type, architecture, config, folder.contains("lm_head.weight"));
  for (const auto& [name, info] : folder.tensors()) {
    const auto own = renamed(architecture, name, &NamePair::hub, &NamePair::gguf);
    if (!own) {
      fail_input(
          {.thing = folder.path(),
           .wrong = fmt::format("tensor '{}' has no place in a GGUF file of the architecture {}",
                                name, architecture.name)});
    }
    const std::string type = types.of(*own, info.shape);
    converted->add(*own, {WrittenTypes::dtype(type), info.shape},
                   {.from = name,
                    .rows = row_order(architecture, name, info.shape[0], width, false),
                    .added = -norm_offset(architecture, name),
                    .stored_type = type});
  }
  if (const auto factors = writer.factors()) {
    const Tensor values = from_values(std::span<const float>(*factors), {std::ssize(*factors)});
    converted->add(rope_factors, {DType::f32, values.shape()},
                   {.stored_type = "F32", .values = values});
  }
  return converted;
}

}  // namespace tessera::hub
