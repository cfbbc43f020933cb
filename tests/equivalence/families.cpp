// This year's families against transformers: curves on one rank and with split heads, greedy texts
// with a cache (tests/reference/families.py).
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "curve.hpp"
#include "greedy.hpp"
#include "hub_folder.hpp"
#include "support.hpp"

using equivalence::Curve;
using equivalence::Folder;
using equivalence::follows;
using equivalence::Layout;
using equivalence::reference;
using equivalence::succeed;

namespace {

/// How a layout with 2 x 2 ranks splits a family.
struct Split {
  std::string name;
  std::string projections = "{gate,up}_proj";  // of dense feed-forward parts; empty: none
  std::string styles = "";                     // further ones
  std::string heads = "{q,k,v}_proj";          // what makes them; empty: they are not split
};

/// Norms of heads see the heads of their rank.
const std::string kHeadNorms = R"toml(
[[parallel]]
style = "SequenceParallel"
axis = "tensor"
on = ["**.{q,k}_norm"]
options = { desired = "Shard(2)" })toml";
const std::string kWeightsOfHeads = R"toml(
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["**.{q,k}_norm"])toml";

const std::string kExperts = R"toml(
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["**.experts"])toml";

/// Recurrent layers, whose convolutions and decays see the heads of their rank.
const std::string kRecurrent = R"toml(
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["**.{q,k,v}_conv", "**.steps", "**.recurrent.{gate,decay}_proj"])toml";
const std::string kStrengths = R"toml(
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["**.strength_proj", "**.self_attn.gate_proj"])toml";
const std::string kGroups = R"toml(
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["**.recurrent.norm"])toml";
const std::string kConvolutions = R"toml(
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["**.conv"])toml";

const std::vector<Split> kFamilies = {
    {"gemma"},
    {"starcoder2", "up_proj"},
    {"olmo"},
    {"seed_oss"},
    {"ernie4_5"},
    {"hunyuan_v1_dense", "{gate,up}_proj", kHeadNorms},
    {"helium"},
    {"exaone4", "{gate,up}_proj", kHeadNorms},
    {"smollm3"},
    {"cohere", "{gate,up}_proj", kWeightsOfHeads},
    {"cohere2"},
    {"glm4"},
    {"stablelm_sequential"},
    {"gpt_neox", "up_proj"},
    {"gpt_neox_sequential", "up_proj"},
    {"gptj", "up_proj"},
    {"olmo2", "{gate,up}_proj", "", ""},
    {"phi", "up_proj"},
    {"granite"},
    {"granitemoe", "", kExperts},
    {"gpt_oss", "", kExperts},
    {"llama4", "{gate,up}_proj", kExperts},
    {"ministral3"},
    {"olmoe", "", kExperts, ""},
    {"glm4_moe", "{gate,up}_proj", kExperts + kHeadNorms},
    {"minimax_m2", "", kExperts, ""},
    {"nanochat", "up_proj"},
    {"apertus", "up_proj", kHeadNorms},
    {"olmo3", "{gate,up}_proj", "", ""},
    {"ernie4_5_moe", "{gate,up}_proj", kExperts},
    {"minicpm3", "{gate,up}_proj", "", "{q,kv}_b_proj"},
    {"glm4_moe_lite", "{gate,up}_proj", kExperts, "{q,kv}_b_proj"},
    {"deepseek_v2", "{gate,up}_proj", kExperts, "{q,kv}_b_proj"},
    {"deepseek_v2_no_rank", "{gate,up}_proj", kExperts, "{q_proj,kv_b_proj}"},
    {"deepseek_v3", "{gate,up}_proj", kExperts, "{q,kv}_b_proj"},
    {"qwen3_next", "mlp.{gate,up}_proj", kExperts + kHeadNorms + kRecurrent + kStrengths},
    {"qwen3_5_text", "mlp.{gate,up}_proj", kHeadNorms + kRecurrent + kStrengths},
    {"mamba2", "", kRecurrent + kGroups},
    {"bamba", "mlp.{gate,up}_proj", kRecurrent + kGroups},
    {"lfm2", "mlp.{gate,up}_proj", kHeadNorms + kConvolutions},
    {"phi3_longrope"},
    {"falcon", "up_proj", "", ""},
    {"falcon_groups", "up_proj"},
    {"falcon_sequential", "up_proj"},
    {"granitemoehybrid", "shared_expert.{gate,up}_proj", kExperts + kRecurrent + kGroups},
    {"granitemoehybrid_dense", "mlp.{gate,up}_proj", kRecurrent + kGroups},
    {"nemotron_h", "up_proj", kExperts + kRecurrent + kGroups},
    {"kimi_linear", "{gate,up}_proj", kExperts, "self_attn.{q_proj,kv_b_proj}"},
    {"gemma3n_text", "mlp.{gate,up}_proj", kHeadNorms},
    {"gemma4_text", "mlp.{gate,up}_proj", "", ""}};

Layout split(const Split& family) {
  const auto entry = [](const char* style, const std::string& first, const std::string& second) {
    std::string on;
    for (const std::string& pattern : {first, second}) {
      if (!pattern.empty()) {
        on += (on.empty() ? "\"**." : ", \"**.") + pattern + "\"";
      }
    }
    return on.empty() ? on
                      : std::string("\n[[parallel]]\nstyle = \"") + style +
                            "\"\naxis = \"tensor\"\non = [" + on + "]";
  };
  const std::string outputs = family.heads.empty() ? "" : "o_proj";
  const std::string results = family.projections.empty() ? "" : "down_proj";
  return {"FSDP 2 x TP 2",
          "[mesh]\naxes = [\"shard\", \"tensor\"]\nshape = [2, 2]" +
              entry("ColwiseParallel", family.heads, family.projections) +
              entry("RowwiseParallel", outputs, results) + family.styles +
              R"(
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)",
          2};
}

const Layout kOneRank = {"one rank", "", 4};

}  // namespace

TEST_CASE("families as files follow PyTorch's curves on one rank", "[.long]") {
  for (const Split& family : kFamilies) {
    follows(Curve("families", family.name), kOneRank, "");
  }
}

TEST_CASE("families as files follow PyTorch's curves with split heads", "[.long]") {
  for (const Split& family : kFamilies) {
    follows(Curve("families", family.name), split(family), "");
  }
}

// tests/reference/further_tokens.py.
TEST_CASE("tokens after the next one are trained on one rank and on shards as PyTorch does") {
  const Layout shards = {"FSDP 2",
                         R"([mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)",
                         2};
  const Curve curve("further", "deepseek_v3");
  for (const Layout& where : {kOneRank, shards}) {
    for (const char* steps : {"", " graph.capture=true"}) {
      follows(curve, where, std::string("model.family=deepseek_v3 model.further_layers=2") + steps);
    }
  }
}

// With biases and limits, without gates over latent features, with weighted inputs.
TEST_CASE("experts of newer families follow PyTorch's curves wherever they are", "[.long]") {
  const Layout owners = {"experts 2",
                         R"([mesh]
axes = ["expert"]
shape = [2]
[[parallel]]
style = "ExpertParallel"
axis = "expert"
on = ["**.experts"]
)",
                         2};
  for (const std::string name : {"gpt_oss", "nemotron_h"}) {
    for (const char* steps : {"", "graph.capture=true"}) {
      follows(Curve("families", name), owners, steps);
    }
  }
}

TEST_CASE("families as files continue prompts as transformers does", "[families]") {
  for (const Split& family : kFamilies) {
    const auto stored = nlohmann::json::parse(
        equivalence::read_file(reference("families/" + family.name + ".json")));
    const auto& greedy = stored["greedy"];
    // The stored texts go on after a token that would end them.
    const Folder folder;
    const std::string source = reference("families/" + family.name);
    auto config = equivalence::json_of(source, "config.json");
    config["eos_token_id"] = nullptr;
    folder.write("model/config.json", config.dump());
    const std::string model = folder / "model";
    std::filesystem::create_symlink(source + "/model.safetensors", model + "/model.safetensors");
    const std::vector<int> prompt = greedy["prompt"];
    const std::vector<int> expected = greedy["tokens"];
    const auto texts = equivalence::continued(
        "generate '" + model + "' --prompts '" +
        folder.write("prompts.txt", equivalence::prompt_of(prompt) + "\n") +
        "' --json --temperature 0 --repetition-penalty " + greedy["repetition_penalty"].dump() +
        " --tokens " + std::to_string(expected.size()) + " --tokenizer '" +
        equivalence::words_tokenizer(folder, config["vocab_size"]) + "'");
    INFO(family.name);
    REQUIRE(texts.size() == 1);
    CHECK(texts[0] == expected);
  }
}
