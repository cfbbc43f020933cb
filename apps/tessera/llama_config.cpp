#include "llama_config.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <tessera/json.hpp>
#include <utility>
#include <vector>

#include "llama_keys.hpp"
#include "llama_values.hpp"

import tessera.base;

namespace tessera::app {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits limits = {.bytes = 16'000'000, .values = 1'000'000, .depth = 64};

// The largest sizes, as for the keys of [model].
constexpr std::int64_t widest = 16777216;
constexpr std::int64_t most = 100000;

Json parsed(ParsedJson json, const std::string& name) {
  if (!json.problem.empty()) {
    fail_input({.thing = name, .wrong = json.problem});
  }
  return std::move(json.value);
}

LlamaConfig config_of(const Json& json, const std::string& name,
                      std::vector<std::string>* unknown = nullptr) {
  LlamaValues in(json, name);
  if (!in.has("model_type")) {
    in.problem("model_type is missing (expected \"llama\")");
  } else if (json["model_type"] != "llama") {
    in.problem(fmt::format("model_type {} is not supported (only \"llama\"): another kind of model",
                           shown(json["model_type"])));
  }
  in.throw_if_any();  // of another kind of model the rest would say little
  LlamaKeys keys = check_llama_keys(json);
  for (std::string& problem : keys.problems) {
    in.problem(std::move(problem));
  }
  if (unknown != nullptr) {
    *unknown = std::move(keys.unknown);
  }
  LlamaConfig c;
  c.vocab = in.size("vocab_size", widest);
  c.dim = in.size("hidden_size", widest);
  c.layers = in.size("num_hidden_layers", most);
  c.heads = in.size("num_attention_heads", most);
  c.kv_heads = in.size("num_key_value_heads", most, c.heads);
  c.ffn_dim = in.size("intermediate_size", widest);
  c.max_positions = in.size("max_position_embeddings", std::int64_t{1} << 40, 2048);
  c.rope_theta = in.rope_theta();
  c.norm_eps = in.positive("rms_norm_eps", 1e-6);
  c.tie_embeddings = in.flag("tie_word_embeddings");
  c.dtype = in.dtype();
  const std::int64_t head_dim = in.size("head_dim", widest, 0);
  in.throw_if_any();
  if (head_dim == 0 && c.dim % c.heads != 0) {
    in.problem(
        fmt::format("num_attention_heads {} does not divide hidden_size {}", c.heads, c.dim));
  }
  c.head_dim = head_dim > 0 ? head_dim : c.dim / c.heads;
  if (c.heads % c.kv_heads != 0) {
    in.problem(fmt::format("num_key_value_heads {} does not divide num_attention_heads {}",
                           c.kv_heads, c.heads));
  }
  if (c.head_dim % 2 != 0) {
    in.problem(fmt::format("head_dim {} is odd; the rotary embedding needs pairs", c.head_dim));
  }
  c.eos = in.tokens("eos_token_id", c.vocab, 2);
  const auto bos = in.tokens("bos_token_id", c.vocab, 1);
  // -1 is an old way to say that there is none. (nlohmann's -1 is equal to 2^64 - 1 too.)
  const Json pad = json.value("pad_token_id", Json());
  if (pad.is_number_unsigned() || pad != -1) {
    in.tokens("pad_token_id", c.vocab, c.vocab);
  }
  in.throw_if_any();
  check_parameter_count(c, name);
  Json others = without_written_keys(json);
  // transformers' defaults, as a reader of the export may have others.
  others.emplace("eos_token_id", c.eos.empty() ? Json() : Json(c.eos[0]));
  others.emplace("bos_token_id", bos.empty() ? Json() : Json(bos[0]));
  others.emplace("pad_token_id", nullptr);
  c.others = json_text(others);
  return c;
}

/// Where there is a generation_config.json, its eos alone counts, as in transformers.
void add_generation(LlamaConfig& config, const Json& json, const std::string& name) {
  LlamaValues in(json, name);
  config.eos = in.tokens("eos_token_id", config.vocab, config.vocab);
  in.throw_if_any();
  config.generation = json_text(json);
}

}  // namespace

std::int64_t LlamaConfig::parameters() const {
  const std::int64_t attention = dim * head_dim * (2 * heads + 2 * kv_heads);
  const std::int64_t layer = attention + 3 * dim * ffn_dim + 2 * dim;
  return vocab * dim * (tie_embeddings ? 1 : 2) + layers * layer + dim;
}

void check_parameter_count(const LlamaConfig& c, const std::string& name) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double layer =
      number(c.dim) *
      (2 * number(c.head_dim) * (number(c.heads) + number(c.kv_heads)) + 3 * number(c.ffn_dim) + 2);
  const double all = 2 * number(c.vocab) * number(c.dim) + number(c.layers) * layer;
  constexpr double limit = 0x1p50;
  if (all > limit) {
    fail_input({.thing = name,
                .wrong = fmt::format("the sizes make {:.3g} parameters", all),
                .expected = fmt::format("at most {:.3g}", limit)});
  }
}

LlamaConfig parse_llama_config(std::string_view text, const std::string& name) {
  return config_of(parsed(parse_json_object(text, limits), name), name);
}

LlamaConfig read_llama_config(const std::filesystem::path& folder,
                              std::vector<std::string>* unknown) {
  if (!std::filesystem::is_directory(folder)) {
    fail_input({.thing = folder.string(),
                .wrong = "there is no such folder",
                .expected = "one with config.json and *.safetensors"});
  }
  const std::string file = (folder / "config.json").string();
  LlamaConfig config = config_of(parsed(read_json_object(file, limits), file), file, unknown);
  const std::filesystem::path generation = folder / "generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation, ignored)) {
    add_generation(config,
                   parsed(read_json_object(generation.string(), limits), generation.string()),
                   generation.string());
  }
  return config;
}

LlamaConfig stored_llama_config(std::string_view meta, const std::string& checkpoint) {
  const ParsedJson json = parse_json_object(meta, limits);
  const auto model = json.value.find("model");
  if (!json.problem.empty() || model == json.value.end() || !model->is_object()) {
    fail_input({.thing = checkpoint, .wrong = "is not a checkpoint of 'tessera train'"});
  }
  Json words = *model;
  for (const char* key : {"eos_token_id", "bos_token_id"}) {
    words.emplace(key, nullptr);  // older checkpoints do not have them: there are no such tokens
  }
  LlamaConfig config = config_of(words, checkpoint);
  if (const auto generation = json.value.find("generation");
      generation != json.value.end() && generation->is_object()) {
    add_generation(config, *generation, checkpoint);
  }
  return config;
}

}  // namespace tessera::app
