#include "llama_config.hpp"

#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;

using namespace tessera::app;
using trainer_test::input_error;
using Json = nlohmann::json;

namespace {

Json plain() {
  return {{"model_type", "llama"},    {"hidden_act", "silu"},        {"hidden_size", 48},
          {"intermediate_size", 72},  {"num_hidden_layers", 2},      {"num_attention_heads", 6},
          {"num_key_value_heads", 3}, {"rms_norm_eps", 1e-5},        {"rope_theta", 5000.0},
          {"vocab_size", 101},        {"tie_word_embeddings", true}, {"attention_bias", false}};
}

LlamaConfig parse(const Json& json) { return parse_llama_config(json.dump(), "config.json"); }

void refused(const std::string& key, const Json& value, const std::string& part) {
  Json json = plain();
  json[key] = value;
  const std::string error = input_error([&] { parse(json); });
  INFO("'" << error << "' should hold '" << part << "'");
  CHECK(error.find(part) != std::string::npos);
  CHECK(error.starts_with("config.json: "));
}

}  // namespace

TEST_CASE("config.json of a Llama is read") {
  const LlamaConfig c = parse(plain());
  CHECK(c == LlamaConfig{.vocab = 101,
                         .dim = 48,
                         .layers = 2,
                         .heads = 6,
                         .kv_heads = 3,
                         .head_dim = 8,
                         .ffn_dim = 72,
                         .rope_theta = 5000.0,
                         .norm_eps = 1e-5,
                         .tie_embeddings = true});
  // 101*48 embeddings; a layer: q, o 48*48 each, k, v 48*24 each, three 48*72, two norms; a norm.
  CHECK(c.parameters() == 101 * 48 + 2 * (2 * 48 * 48 + 2 * 48 * 24 + 3 * 48 * 72 + 96) + 48);
}

TEST_CASE("newer writers' rotary settings, a given head_dim and absent keys are read") {
  Json json = plain();
  json.erase("rope_theta");
  json.erase("num_key_value_heads");
  json.erase("tie_word_embeddings");
  json["rope_parameters"] = {{"rope_theta", 1000000.0}, {"rope_type", "default"}};
  json["rope_scaling"] = nullptr;
  json["head_dim"] = 10;
  const LlamaConfig c = parse(json);
  CHECK(c.rope_theta == 1000000.0);
  CHECK(c.kv_heads == 6);
  CHECK(c.head_dim == 10);
  CHECK_FALSE(c.tie_embeddings);
}

TEST_CASE("what the program does not compute is refused by name") {
  refused("model_type", "mistral", "model_type \"mistral\" is not supported");
  refused("hidden_act", "gelu", "hidden_act \"gelu\" is not supported");
  refused("attention_bias", true, "attention_bias true is not supported");
  refused("mlp_bias", true, "mlp_bias true is not supported");
  refused("rope_scaling", {{"type", "linear"}, {"factor", 2.0}},
          "rope_scaling.type \"linear\" is not supported");
  refused("rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e4}},
          "rope_parameters.rope_type \"llama3\" is not supported");
  refused("rope_scaling", {{"factor", 2.0}}, "has a factor but no type");
}

TEST_CASE("impossible sizes in config.json are errors") {
  refused("hidden_size", -48, "hidden_size: expected a positive integer, got -48");
  refused("hidden_size", 1e300, "hidden_size: expected a positive integer");
  refused("hidden_size", "48", "hidden_size: expected a positive integer, got \"48\"");
  refused("vocab_size", nullptr, "vocab_size is missing");
  refused("rms_norm_eps", 0, "rms_norm_eps: expected a positive number");
  refused("num_attention_heads", 5, "num_attention_heads 5 does not divide hidden_size 48");
  refused("num_key_value_heads", 4, "num_key_value_heads 4 does not divide");
  refused("head_dim", 7, "head_dim 7 is odd");
  refused("rope_parameters", 3, "rope_parameters: expected an object");
  refused("tie_word_embeddings", "yes", "tie_word_embeddings: expected true or false");
  CHECK(input_error([] { parse_llama_config("{", "c"); }) == "c: is not a JSON object");
  CHECK(input_error([] { read_llama_config("/nowhere"); }).find("no such folder") !=
        std::string::npos);
  const trainer_test::Folder folder;
  CHECK(input_error([&] {
          read_llama_config(folder.path());
        }).find("config.json: cannot be read") != std::string::npos);
}
