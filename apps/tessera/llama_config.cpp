#include "llama_config.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

import tessera.base;

namespace tessera::app {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  std::int64_t size(const char* key) {
    if (const auto value = optional_size(key)) {
      return *value;
    }
    if (!present(json_, key)) {
      problem(fmt::format("{} is missing", key));
    }
    return 1;
  }

  std::optional<std::int64_t> optional_size(const char* key) {
    if (!present(json_, key)) {
      return std::nullopt;
    }
    const Json& value = json_[key];
    constexpr std::int64_t limit = std::int64_t{1} << 32;
    if (!value.is_number_integer() || value.get<double>() < 1 ||
        value.get<double>() > static_cast<double>(limit)) {
      problem(fmt::format("{}: expected a positive integer, got {}", key, value.dump()));
      return std::nullopt;
    }
    return value.get<std::int64_t>();
  }

  double positive(const Json& in, const char* key, double fallback) {
    if (!present(in, key)) {
      return fallback;
    }
    if (!in[key].is_number() || !(in[key].get<double>() > 0)) {
      problem(fmt::format("{}: expected a positive number, got {}", key, in[key].dump()));
      return fallback;
    }
    return in[key].get<double>();
  }

  bool flag(const char* key) {
    if (!present(json_, key)) {
      return false;
    }
    if (!json_[key].is_boolean()) {
      problem(fmt::format("{}: expected true or false, got {}", key, json_[key].dump()));
      return false;
    }
    return json_[key].get<bool>();
  }

  void only(const char* key, const char* word, const char* what) {
    if (present(json_, key) && json_[key] != word) {
      problem(fmt::format("{} {} is not supported (only \"{}\"): {}", key, json_[key].dump(), word,
                          what));
    }
  }

  /// The rope's settings of old writers (rope_scaling) and new ones (rope_parameters).
  double rope_theta() {
    double theta = positive(json_, "rope_theta", 10000.0);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (!present(json_, key)) {
        continue;
      }
      const Json& rope = json_[key];
      if (!rope.is_object()) {
        problem(fmt::format("{}: expected an object, got {}", key, rope.dump()));
        continue;
      }
      theta = positive(rope, "rope_theta", theta);
      for (const char* type : {"rope_type", "type"}) {
        if (present(rope, type) && rope[type] != "default") {
          problem(fmt::format("{}.{} {} is not supported (only \"default\")", key, type,
                              rope[type].dump()));
        }
      }
      if (present(rope, "factor") && !present(rope, "rope_type") && !present(rope, "type")) {
        problem(fmt::format("{}: has a factor but no type; only \"default\" is supported", key));
      }
      if (present(rope, "partial_rotary_factor") && rope["partial_rotary_factor"] != 1.0) {
        problem(fmt::format("{}.partial_rotary_factor {} is not supported (only 1)", key,
                            rope["partial_rotary_factor"].dump()));
      }
    }
    return theta;
  }

  void problem(std::string text) { problems_.push_back(std::move(text)); }

  void throw_if_any() const {
    if (problems_.size() == 1) {
      fail_input(fmt::format("{}: {}", name_, problems_[0]));
    }
    if (!problems_.empty()) {
      std::string text = fmt::format("{}: {} problems", name_, problems_.size());
      for (const std::string& problem : problems_) {
        text += "\n  " + problem;
      }
      fail_input(text);
    }
  }

  static bool present(const Json& in, const char* key) {
    return in.contains(key) && !in[key].is_null();
  }

 private:
  const Json& json_;
  std::string name_;
  std::vector<std::string> problems_;
};

}  // namespace

std::int64_t LlamaConfig::parameters() const {
  const std::int64_t attention = dim * head_dim * (2 * heads + 2 * kv_heads);
  const std::int64_t layer = attention + 3 * dim * ffn_dim + 2 * dim;
  return vocab * dim * (tie_embeddings ? 1 : 2) + layers * layer + dim;
}

LlamaConfig parse_llama_config(std::string_view text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    fail_input(fmt::format("{}: is not a JSON object", name));
  }
  Reader in(json, name);
  if (!Reader::present(json, "model_type")) {
    in.problem("model_type is missing (expected \"llama\")");
  }
  in.only("model_type", "llama", "another kind of model");
  in.throw_if_any();  // of another kind of model the rest would say little
  in.only("hidden_act", "silu", "the feed-forward part is SwiGLU");
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (in.flag(bias)) {
      in.problem(fmt::format("{} true is not supported: the linear layers have no bias", bias));
    }
  }
  LlamaConfig c;
  c.vocab = in.size("vocab_size");
  c.dim = in.size("hidden_size");
  c.layers = in.size("num_hidden_layers");
  c.heads = in.size("num_attention_heads");
  c.kv_heads = in.optional_size("num_key_value_heads").value_or(c.heads);
  c.ffn_dim = in.size("intermediate_size");
  c.rope_theta = in.rope_theta();
  c.norm_eps = in.positive(json, "rms_norm_eps", 1e-6);  // the default of transformers
  c.tie_embeddings = in.flag("tie_word_embeddings");
  const auto head_dim = in.optional_size("head_dim");
  in.throw_if_any();
  if (!head_dim && c.dim % c.heads != 0) {
    in.problem(
        fmt::format("num_attention_heads {} does not divide hidden_size {}", c.heads, c.dim));
  }
  c.head_dim = head_dim.value_or(c.dim / c.heads);
  if (c.heads % c.kv_heads != 0) {
    in.problem(fmt::format("num_key_value_heads {} does not divide num_attention_heads {}",
                           c.kv_heads, c.heads));
  }
  if (c.head_dim % 2 != 0) {
    in.problem(fmt::format("head_dim {} is odd; the rotary embedding needs pairs", c.head_dim));
  }
  in.throw_if_any();
  return c;
}

LlamaConfig read_llama_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  if (!std::filesystem::is_directory(folder)) {
    fail_input(
        fmt::format("{}: there is no such folder (expected one with config.json and "
                    "*.safetensors)",
                    folder.string()));
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    fail_input(
        fmt::format("{}: cannot be read; the folder must hold a config.json in Hugging "
                    "Face's form",
                    file.string()));
  }
  std::stringstream text;
  text << stream.rdbuf();
  return parse_llama_config(text.str(), file.string());
}

}  // namespace tessera::app
