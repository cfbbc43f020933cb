#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.models;
import tessera.app.config;
import tessera.hub;

namespace hub = tessera::hub;
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

hub::ModelShape parse(const Json& json) {
  return hub::parse_hub_config(json.dump(), "config.json");
}

/// A whole number as the value of a key.
std::int64_t whole(std::int64_t value) { return value; }

std::int64_t size_of(const hub::ModelShape& shape, const char* name) {
  return std::get<std::int64_t>(shape.values.at(name));
}

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
  const hub::ModelShape c = parse(plain());
  CHECK(c == hub::ModelShape{.family = "llama",
                             .vocab = 101,
                             .values = {{"dim", whole(48)},
                                        {"layers", whole(2)},
                                        {"heads", whole(6)},
                                        {"kv_heads", whole(3)},
                                        {"head_dim", whole(8)},
                                        {"ffn_dim", whole(72)},
                                        {"rope_theta", 5000.0},
                                        {"norm_eps", 1e-5},
                                        {"tie_embeddings", true},
                                        {"rope_scaling", std::string("none")},
                                        {"rope_factor", 1.0},
                                        {"rope_original_positions", 0.0},
                                        {"rope_low", 1.0},
                                        {"rope_high", 4.0},
                                        {"rope_amplitude", 1.0},
                                        {"rope_whole_dims", true},
                                        {"rope_short_factors", std::vector<double>()},
                                        {"rope_long_factors", std::vector<double>()},
                                        {"attention_bias", false},
                                        {"ffn_bias", false}},
                             // The defaults of transformers for keys that are absent.
                             .max_positions = 2048,
                             .dtype = "",
                             .eos = {2},
                             .others = R"({"bos_token_id":1,"eos_token_id":2,"pad_token_id":null})",
                             .generation = ""});
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
  const hub::ModelShape c = parse(json);
  CHECK(std::get<double>(c.values.at("rope_theta")) == 1000000.0);
  CHECK(size_of(c, "kv_heads") == 6);
  CHECK(size_of(c, "head_dim") == 10);
  CHECK_FALSE(std::get<bool>(c.values.at("tie_embeddings")));
}

TEST_CASE("what the program does not compute is refused by name") {
  refused("model_type", "falcon_mamba", "model_type \"falcon_mamba\" is no family of models");
  refused("hidden_act", "gelu", "hidden_act \"gelu\" is not supported");
  refused("attention_bias", 1, "attention_bias: expected true or false, got 1");
  refused("rope_scaling", {{"type", "su"}, {"factor", 2.0}},
          "rope_scaling.type \"su\" is not supported (only \"default\", \"dynamic\", "
          "\"longrope\", \"linear\", \"llama3\" and \"yarn\")");
  refused("rope_scaling", {{"type", "longrope"}, {"factor", 2.0}},
          "rope_scaling.short_factor: expected a list of positive numbers, got null");
  refused("rope_scaling",
          {{"type", "longrope"}, {"short_factor", {1.0, -1.0}}, {"long_factor", {1.0, 2.0}}},
          "rope_scaling.short_factor: expected a list of positive numbers, got [1.0,-1.0]");
  refused("rope_scaling",
          {{"type", "longrope"}, {"short_factor", {1.0, 2.0}}, {"long_factor", {1.0, 2.0}}},
          "each pair of rotated features needs both (of 4 pairs there are 2 and 2)");
  refused("rope_scaling", {{"type", "linear"}}, "rope_scaling.factor is missing");
  refused("rope_parameters",
          {{"rope_type", "llama3"},
           {"rope_theta", 5000.0},
           {"factor", 8.0},
           {"low_freq_factor", 1.0},
           {"high_freq_factor", 4.0}},
          "rope_parameters.original_max_position_embeddings is missing");
  refused("rope_scaling",
          {{"type", "yarn"},
           {"factor", 4.0},
           {"original_max_position_embeddings", 32},
           {"beta_fast", 1.0},
           {"beta_slow", 2.0}},
          "the low bound below the high one (got 32 positions, 2 and 1)");
  refused("rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"beta_fast", 1.0}},
          "rope_scaling.beta_fast: the linear rotary embedding has no such setting");
  refused("rope_scaling", {{"factor", 2.0}}, "has a factor but no type");
  refused("rope_parameters", {{"rope_theta", 5000.0}, {"factor", 2.0}}, "has a factor but no type");
  refused("rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}},
          "rope_parameters.full_attention: the default rotary embedding has no such setting");
  refused("rope_parameters", {{"rope_theta", 1e4}},
          "rope_theta is given twice, as 5000 and as 10000");
  refused("rope_parameters", {{"rope_theta", 5000.0}, {"partial_rotary_factor", 0.5}},
          "rope_parameters.partial_rotary_factor 0.5 is not supported");
  refused("partial_rotary_factor", 0.5, "partial_rotary_factor 0.5 is not supported (only 1.0)");
  refused("attention_dropout", 0.1, "attention_dropout 0.1 is not supported (only 0.0)");
  refused("sliding_window", 4096, "sliding_window 4096 is not supported (only null)");
  refused("attention_chunk_size", 64, "attention_chunk_size 64 is not supported");
  refused("is_causal", false, "is_causal false is not supported (only true)");
  refused("is_encoder_decoder", true, "is_encoder_decoder true is not supported");
  refused("add_cross_attention", true, "add_cross_attention true is not supported");
  refused("pruned_heads", {{"0", {1}}}, "pruned_heads {\"0\":[1]} is not supported");
  refused("per_layer_config", {{"0", {{"hidden_act", "gelu"}}}}, "per_layer_config");
  refused("layer_types", {"full_attention", "sliding_attention"}, "layer_types [\"full_attention");
  refused("mlp_layer_types", {"dense", "sparse"}, "mlp_layer_types");
  refused("quantization_config", {{"quant_method", "eetq"}}, "quantization_config");
  refused("loss_type", "ForMaskedLM", "loss_type \"ForMaskedLM\" is not supported");
  refused("architectures", Json::array({"LlamaForSequenceClassification"}),
          "architectures [\"LlamaForSequenceClassification\"] is not supported");
  refused("auto_map", {{"AutoModelForCausalLM", "modeling_x.X"}}, "auto_map");
  refused("dtype", "int8", "dtype \"int8\" is not supported");
  Json both = plain();
  both["dtype"] = "float32";
  both["torch_dtype"] = "bfloat16";
  CHECK(input_error([&] { parse(both); }).find("remove one of the two") != std::string::npos);
}

namespace {

Json with_experts() {
  Json json = plain();
  json.update({{"model_type", "qwen3_moe"},
               {"num_experts", 6},
               {"num_experts_per_tok", 3},
               {"moe_intermediate_size", 20},
               {"decoder_sparse_step", 2},
               {"mlp_only_layers", {1}},
               {"norm_topk_prob", true}});
  return json;
}

}  // namespace

TEST_CASE("config.json with older names of keys, keys in objects and Python's numbers is read") {
  const std::string data = TESSERA_SOURCE_FOLDER "/tests/reference/data/families/";
  const auto stored = [&](const std::string& name) {
    return Json::parse(trainer_test::read_file(data + name + "/config.json"));
  };
  Json lfm = stored("lfm2");
  const hub::ModelShape expected = parse(lfm);
  lfm["block_ff_dim"] = lfm["intermediate_size"];
  lfm.erase("intermediate_size");
  CHECK(parse(lfm).values == expected.values);
  lfm["intermediate_size"] = 23;
  const std::string both = input_error([&] { parse(lfm); });
  CHECK(both.find("block_ff_dim is 24, but intermediate_size is 23") != std::string::npos);
  // As Kimi's first folder has it: numbers of layers from 1.
  Json kimi = stored("kimi_linear");
  const hub::ModelShape of_types = parse(kimi);
  for (const char* key : {"layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads",
                          "linear_conv_kernel_dim"}) {
    kimi.erase(key);
  }
  kimi["linear_attn_config"] = {{"full_attn_layers", {2}},
                                {"kda_layers", {1}},
                                {"head_dim", 8},
                                {"num_heads", 3},
                                {"short_conv_kernel_size", 3}};
  hub::ModelShape of_numbers = parse(kimi);
  CHECK(size_of(of_numbers, "first_dense_layers") == 1);
  for (const char* key : {"dense_layers", "first_dense_layers"}) {
    of_numbers.values[key] = of_types.values.at(key);
  }
  CHECK(of_numbers.values == of_types.values);
  kimi["linear_attn_config"]["lower_bound"] = -5;
  CHECK(input_error([&] { parse(kimi); }).find("linear_attn_config.lower_bound: not understood") !=
        std::string::npos);
  // Infinity is no JSON, and Python writes it.
  const trainer_test::Folder folder;
  Json mamba = stored("mamba2");
  mamba["time_step_limit"] = {0.25, "INFINITY"};
  std::string text = mamba.dump();
  text.replace(text.find("\"INFINITY\""), 10, "Infinity");
  folder.write("config.json", text);
  const hub::ModelShape endless = hub::read_model_folder(folder.path());
  CHECK(std::get<double>(endless.values.at("recurrent_step_low")) == 0.25);
  CHECK(std::get<double>(endless.values.at("recurrent_step_high")) == 0);
}

TEST_CASE("flags of config.json choose the form of a Falcon") {
  const std::string data = TESSERA_SOURCE_FOLDER "/tests/reference/data/families/";
  Json json = Json::parse(trainer_test::read_file(data + "falcon_groups/config.json"));
  const auto form = [&] { return std::get<std::string>(parse(json).values.at("form")); };
  CHECK(form() == "grouped");
  json["num_ln_in_parallel_attn"] = 1;
  CHECK(form() == "grouped_one_norm");
  json["new_decoder_architecture"] = false;
  json["num_ln_in_parallel_attn"] = nullptr;
  CHECK(form() == "multi_query");
  CHECK(size_of(parse(json), "kv_heads") == 1);
  json["multi_query"] = false;
  CHECK(form() == "multi_head");
  CHECK(size_of(parse(json), "kv_heads") == 4);
  json["new_decoder_architecture"] = true;
  json["num_ln_in_parallel_attn"] = 3;
  CHECK(input_error([&] { parse(json); }).find("no models with these values together") !=
        std::string::npos);
  json["alibi"] = true;
  CHECK(input_error([&] { parse(json); }).find("alibi true is not supported (only false)") !=
        std::string::npos);
}

TEST_CASE("config.json says which layers have experts, and how many") {
  const hub::ModelShape c = parse(with_experts());
  CHECK(size_of(c, "experts") == 6);
  CHECK(size_of(c, "experts_per_token") == 3);
  CHECK(size_of(c, "expert_dim") == 20);
  CHECK(size_of(c, "experts_every") == 2);
  CHECK(std::get<bool>(c.values.at("normalize_experts")));
  CHECK(std::get<std::vector<std::int64_t>>(c.values.at("dense_layers")) == std::vector{whole(1)});
  CHECK(parse(Json::parse(hub::hub_config(c))) == c);
  Json newer = with_experts();
  newer["num_local_experts"] = newer["num_experts"];
  newer.erase("num_experts");
  CHECK(parse(newer) == c);
  // What transformers assumes where the keys are missing.
  Json absent = with_experts();
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                          "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"}) {
    absent.erase(key);
  }
  const hub::ModelShape assumed = parse(absent);
  CHECK(size_of(assumed, "experts") == 128);
  CHECK(size_of(assumed, "experts_per_token") == 8);
  CHECK(size_of(assumed, "expert_dim") == 768);
  CHECK(size_of(assumed, "experts_every") == 1);
  CHECK(!std::get<bool>(assumed.values.at("normalize_experts")));
}

TEST_CASE("experts that cannot be are refused") {
  const auto wrong = [](const char* key, const Json& value, const char* part) {
    Json json = with_experts();
    json[key] = value;
    const std::string error = input_error([&] { parse(json); });
    INFO(error);
    CHECK(error.find(part) != std::string::npos);
  };
  wrong("num_experts_per_tok", 7,
        "num_experts_per_tok: a token cannot have more experts than there are (6 experts, 7 per");
  wrong("num_local_experts", 5, "num_experts 6 and num_local_experts 5 are not one number");
  wrong("num_experts", 0, "num_experts: expected a positive integer");
  wrong("mlp_only_layers", {0, 2}, "mlp_only_layers: there is no layer 2 (2 layers, from 0)");
  wrong("mlp_only_layers", {-1}, "mlp_only_layers: expected a list of integers from 0 to");
  wrong("mlp_only_layers", 1, "mlp_only_layers: expected a list of integers from 0 to");
  wrong("decoder_sparse_step", 0, "decoder_sparse_step: expected a positive integer");
  wrong("output_router_logits", true, "the loss has no term that balances experts");
  wrong("num_expert", 6, "did you mean");
}

TEST_CASE("what transformers sets without effect on the model is accepted") {
  Json json = plain();
  const Json accepted = {{"attention_dropout", 0.0},
                         {"pruned_heads", Json::object()},
                         {"layer_types", {"full_attention", "full_attention"}},
                         {"sliding_window", nullptr},
                         {"architectures", Json::array({"LLaMAForCausalLM"})},
                         {"auto_map", {{"AutoTokenizer", "tokenization_x.X"}}},
                         {"rope_parameters", {{"rope_theta", 5000.0}, {"rope_type", "default"}}},
                         {"pad_token_id", -1},
                         {"use_cache", false},
                         {"id2label", {{"0", "LABEL_0"}}}};
  for (const auto& [key, value] : accepted.items()) {
    INFO(key);
    json[key] = value;
    CHECK(size_of(parse(json), "dim") == 48);
  }
}

TEST_CASE("a key of config.json that nobody understands is refused") {
  // Every key that changes the model, with a letter less and with two letters exchanged.
  for (const std::string key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
        "rope_scaling", "rope_parameters", "tie_word_embeddings", "hidden_act", "attention_bias",
        "mlp_bias", "attention_dropout", "max_position_embeddings", "sliding_window"}) {
    std::string shorter = key;
    shorter.erase(key.size() / 2, 1);
    std::string exchanged = key;
    std::swap(exchanged[key.size() - 3], exchanged[key.size() - 2]);
    for (const std::string& wrong : {shorter, exchanged}) {
      if (wrong != key) {
        refused(wrong, 1, wrong + ": unknown key; did you mean '" + key + "'?");
      }
    }
  }
  refused("rope_parameters", {{"rope_tehta", 5000.0}},
          "rope_parameters.rope_tehta: the default rotary embedding has no such setting; did you "
          "mean 'rope_theta'?");
  const trainer_test::Folder folder;
  Json json = plain();
  json["logits_scaling"] = 8.0;
  json["no_rope_layers"] = {1, 0};
  json["attention_dropout"] = 0.5;
  folder.write("config.json", json.dump());
  const std::string error = input_error([&] { hub::read_model_folder(folder.path()); });
  // All at once, with what else is wrong.
  CHECK(error.find("attention_dropout 0.5 is not supported") != std::string::npos);
  CHECK(error.find("logits_scaling and no_rope_layers: not understood, so the model may be another "
                   "one") != std::string::npos);
  json = plain();
  json["unsloth_version"] = "2025";  // of another program, and known to change nothing
  folder.write("config.json", json.dump());
  CHECK(size_of(hub::read_model_folder(folder.path()), "dim") == 48);
  // A model that was trained without knowing the key is that model.
  json["logits_scaling"] = 8.0;
  const Json meta = {{"model", json}};
  CHECK(size_of(hub::stored_model(meta.dump(), "checkpoint"), "dim") == 48);
}

namespace {

Json reference(const std::string& name) {
  return Json::parse(trainer_test::read_file(std::string(TESSERA_SOURCE_FOLDER) +
                                             "/tests/reference/data/" + name));
}

}  // namespace

TEST_CASE("every key that transformers has for a family is understood") {
  // tests/reference/config_files.py
  const Json stored = reference("config_files.json").at("keys");
  CHECK(stored.size() >= 2);
  const std::vector<std::string> known = tessera::models::model_families();
  for (const auto& [version, families] : stored.items()) {
    std::size_t seen = 0;
    for (const auto& [family, config] : families.items()) {
      INFO(version << " " << family);
      if (std::ranges::find(known, family) != known.end()) {
        // Defaults that no model has: dropout, no dense layer before experts, heads that do not
        // divide, a token beyond the vocabulary.
        const bool refused_by_default = family == "seed_oss" || family == "deepseek_v2" ||
                                        family == "glm4_moe" || family == "starcoder2";
        CHECK((refused_by_default || input_error([&] { parse(config); }).empty()));
        ++seen;
      }
    }
    // The older version's were stored before most of today's families were here.
    CHECK(seen >= (version.starts_with("4.") ? 11 : tessera::models::built_in_families().size()));
  }
}

TEST_CASE("yarn's factor of cosines and sines is that of transformers") {
  const Json stored = reference("config_files.json").at("rotary");
  for (const auto& [version, cases] : stored.items()) {
    for (const auto& [name, one] : cases.items()) {
      INFO(version << " " << name);
      const hub::ModelShape shape = parse(one.at("config"));
      const double got = std::get<double>(shape.values.at("rope_amplitude"));
      CHECK(got == Approx(one.at("amplitude").get<double>()).epsilon(1e-6));
      CHECK(std::get<double>(
                parse(Json::parse(hub::hub_config(shape))).values.at("rope_amplitude")) == got);
    }
  }
}

TEST_CASE("an export is what both versions of transformers read as the same model") {
  // tests/reference/config_files.py computes logits by the one and the other.
  const Json stored = reference("config_exports.json");
  for (const auto& [name, one] : stored.items()) {
    INFO(name);
    const Json written = Json::parse(hub::hub_config(parse(one.at("config"))));
    CHECK(written == one.at("export"));
    CHECK(parse(written) == parse(one.at("config")));
  }
}

TEST_CASE("a scaling that is given twice must be one scaling") {
  Json json = plain();
  json["max_position_embeddings"] = 512;
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5000.0}};
  CHECK(std::get<double>(parse(json).values.at("rope_factor")) == 2.0);
  json["rope_parameters"]["factor"] = 4.0;
  CHECK(input_error([&] { parse(json); }).find("rope_scaling and rope_parameters differ") !=
        std::string::npos);
}

TEST_CASE("what came in with config.json goes out again") {
  Json json = plain();
  json.update(Json{{"eos_token_id", {7, 100}},
                   {"bos_token_id", nullptr},
                   {"pad_token_id", 3},
                   {"max_position_embeddings", 512},
                   {"torch_dtype", "bfloat16"},
                   {"initializer_range", 0.01},
                   {"use_cache", false},
                   {"transformers_version", "4.40.0"}});
  const hub::ModelShape c = parse(json);
  CHECK(c.eos == std::vector<std::int64_t>{7, 100});
  CHECK(c.max_positions == 512);
  CHECK(c.dtype == "bfloat16");
  const Json out = Json::parse(hub::hub_config(c));
  json.erase("transformers_version");  // of the program that wrote the file
  for (const auto& [key, value] : json.items()) {
    INFO(key);
    CHECK(out.at(key) == value);
  }
  CHECK(out.at("dtype") == "bfloat16");
  CHECK(parse(out) == c);
  const Json generation = Json::parse(hub::generation_config(c));
  CHECK(generation.at("eos_token_id") == Json({7, 100}));
  CHECK(generation.at("bos_token_id").is_null());
}

TEST_CASE("a model that was trained from nothing says so: no special tokens") {
  hub::ModelShape c = parse(plain());
  c.others.clear();
  c.max_positions = 77;
  c.dtype = "float32";
  const Json out = Json::parse(hub::hub_config(c));
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"}) {
    INFO(key);
    CHECK(out.at(key).is_null());  // absent, transformers would take 2 and 1
    CHECK(Json::parse(hub::generation_config(c)).at(key).is_null());
  }
  CHECK(out.at("max_position_embeddings") == 77);
  CHECK(out.at("dtype") == "float32");
  CHECK(parse(out).eos.empty());
}

TEST_CASE("generation_config.json decides what ends a text") {
  const trainer_test::Folder folder;
  Json json = plain();
  json["eos_token_id"] = 5;
  folder.write("config.json", json.dump());
  CHECK(hub::read_model_folder(folder.path()).eos == std::vector<std::int64_t>{5});
  const auto with = [&](const std::string& text) {
    folder.write("generation_config.json", text);
    return hub::read_model_folder(folder.path());
  };
  CHECK(with(R"({"eos_token_id": [9, 8]})").eos == std::vector<std::int64_t>{9, 8});
  CHECK(with(R"({"eos_token_id": 9})").eos == std::vector<std::int64_t>{9});
  CHECK(with("{}").eos.empty());
  const hub::ModelShape c = with(R"({"eos_token_id": 9, "temperature": 0.6})");
  CHECK(Json::parse(hub::generation_config(c)) ==
        Json::parse(R"({"eos_token_id":9,"temperature":0.6})"));
  CHECK(Json::parse(hub::hub_config(c)).at("eos_token_id") == 5);
  for (const char* wrong : {"[]", "{", R"({"eos_token_id": 101})", R"({"eos_token_id": "a"})"}) {
    INFO(wrong);
    CHECK(input_error([&] { with(wrong); }).find("generation_config.json: ") != std::string::npos);
  }
}

TEST_CASE("no integer of config.json may be negative, zero, huge, a fraction or a text") {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const char* value : {"-1", "0", "1000000000000000", "18446744073709551615",
                              "18446744073709551617", "2.0", "2.5", "\"2\"", "true", "[2]", "{}"}) {
      Json json = plain();
      json[key] = Json::parse(value);
      const std::string error = input_error([&] { parse(json); });
      INFO(key << " " << value << ": " << error);
      CHECK(error.find(key + std::string(": expected a positive integer")) != std::string::npos);
    }
  }
  for (const char* key : {"eos_token_id", "bos_token_id", "pad_token_id"}) {
    for (const char* value :
         {"-2", "101", "18446744073709551615", "2.0", "\"2\"", "true", "[2, -1]", "[[2]]", "{}"}) {
      Json json = plain();
      json[key] = Json::parse(value);
      const std::string error = input_error([&] { parse(json); });
      INFO(key << " " << value << ": " << error);
      CHECK(error.find(key + std::string(": expected null, a token id")) != std::string::npos);
    }
  }
}

TEST_CASE("sizes that cannot be counted are refused") {
  Json json = plain();
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "head_dim"}) {
    json[key] = 16777216;
  }
  json["num_hidden_layers"] = 100000;
  CHECK(input_error([&] { parse(json); }).find("parameters (expected at most") !=
        std::string::npos);
}

TEST_CASE("impossible sizes in config.json are errors") {
  refused("hidden_size", -48,
          "hidden_size: expected a positive integer of at most 16777216, got -48");
  refused("hidden_size", 1e300, "hidden_size: expected a positive integer");
  refused("hidden_size", "48",
          "hidden_size: expected a positive integer of at most 16777216, got \"48\"");
  refused("vocab_size", nullptr, "vocab_size is missing");
  refused("rms_norm_eps", 0, "rms_norm_eps: expected a positive number");
  refused("num_attention_heads", 5, "num_attention_heads 5 does not divide hidden_size 48");
  refused("num_key_value_heads", 4, "num_key_value_heads 4 does not divide");
  refused("head_dim", 7, "of head_dim 7 7 features are rotated");
  refused("rope_parameters", 3, "rope_parameters: expected an object");
  refused("tie_word_embeddings", "yes", "tie_word_embeddings: expected true or false");
  CHECK(input_error([] { hub::parse_hub_config("{", "c"); }).starts_with("c: it is not JSON"));
  CHECK(input_error([] { hub::parse_hub_config("[]", "c"); }) == "c: it is not a JSON object");
  CHECK(input_error([] {
          hub::parse_hub_config(R"({"hidden_size":1,"hidden_size":2})", "c");
        }).find("hidden_size") != std::string::npos);
  CHECK(input_error([] { hub::read_model_folder("/nowhere"); }).find("no such folder") !=
        std::string::npos);
  const trainer_test::Folder folder;
  CHECK(input_error([&] {
          hub::read_model_folder(folder.path());
        }).find("config.json: it cannot be read") != std::string::npos);
}
