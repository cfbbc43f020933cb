// Mixtures of experts against transformers: curves with the experts split over ranks, folders in
// and out, checkpoints. Whole experts in other layouts, and other families, are in decoders.cpp.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "curve.hpp"
#include "hub_folder.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::Curve;
using equivalence::Folder;
using equivalence::follows;
using equivalence::Layout;
using equivalence::loss_difference;
using equivalence::one_step;
using equivalence::reference;
using equivalence::same_bits;
using equivalence::Step;
using tessera::testing::small_model;

namespace {

const std::string kExperts = R"([[parallel]]
style = "ExpertParallel"
axis = "expert"
on = ["model.layers.*.mlp.experts"]
)";

std::string mesh(const std::string& axes, const std::string& shape) {
  return "[mesh]\naxes = [" + axes + "]\nshape = [" + shape + "]\n";
}

std::string style(const std::string& name, const std::string& axis) {
  return "[[parallel]]\nstyle = \"" + name + "\"\naxis = \"" + axis +
         "\"\non = [\"model.layers.*\", \".\"]\n";
}

const std::string kHeads = R"([[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["**.{q,k,v}_proj"]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["**.o_proj", "**.experts"]
)";

/// Sequence parallel, as configs/sequence_parallel.toml has it; each expert is split by rows.
const std::string kSequence = R"toml([[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["model.embed_tokens"]
options = { input = "Replicate", output = "Shard(1)" }
[[parallel]]
style = "SequenceParallel"
axis = "tensor"
on = ["**.{input,post_attention}_layernorm", "model.norm"]
[[parallel]]
style = "PrepareModuleInput"
axis = "tensor"
on = ["**.{self_attn,mlp}"]
options = { input = "Shard(1)", desired = "Replicate" }
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["**.{q,k,v}_proj"]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["**.o_proj", "**.experts"]
options = { output = "Shard(1)" }
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["lm_head"]
options = { input = "Shard(1)", output = "Replicate" }
)toml";

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"one rank", "", 4},
      {"experts 2", mesh(R"("expert")", "2") + kExperts, 3},
      {"experts 4", mesh(R"("expert")", "4") + kExperts, 1},
      {"FSDP 2", mesh(R"("shard")", "2") + style("FSDP", "shard"), 3},
      {"FSDP 2 x experts 2",
       mesh(R"("shard", "expert")", "2, 2") + kExperts + style("FSDP", "shard"), 1},
      {"experts 2 x FSDP 2",
       mesh(R"("expert", "shard")", "2, 2") + kExperts + style("FSDP", "shard"), 3},
      {"Replicate 2 x experts 2",
       mesh(R"("replicate", "expert")", "2, 2") + kExperts + style("Replicate", "replicate"), 3},
      {"experts 2 x TP 2", mesh(R"("expert", "tensor")", "2, 2") + kExperts + kHeads, 3},
      {"TP 2 with sequence parallel", mesh(R"("tensor")", "2") + kSequence, 6}};
  return all;
}

const Layout& layout(const std::string& name) {
  for (const Layout& one : layouts()) {
    if (one.name == name) {
      return one;
    }
  }
  FAIL("no layout " << name);
  return layouts()[0];
}

}  // namespace

TEST_CASE("a mixture of experts follows PyTorch's curve wherever its experts are", "[mixtral]") {
  for (const char* where :
       {"experts 2", "FSDP 2 x experts 2", "experts 2 x TP 2", "TP 2 with sequence parallel"}) {
    follows(Curve("mixtral", "four"), layout(where),
            "train.micro_batch=" + std::to_string(layout(where).micro_batch) +
                " train.activation_checkpointing=true");
  }
  follows(Curve("mixtral", "eight"), layout("experts 4"), "");
}

TEST_CASE("mixtures of experts follow PyTorch's curves in every layout", "[.long]") {
  for (const char* name : {"four", "eight"}) {
    const Curve curve("mixtral", name);
    for (const Layout& where : layouts()) {
      follows(curve, where, "");
      follows(curve, where,
              "train.micro_batch=" + std::to_string(where.micro_batch) +
                  " train.activation_checkpointing=true");
    }
  }
}

namespace {

void captured_is_eager(const std::vector<std::string>& places) {
  const Curve curve("mixtral", "four");
  for (const std::string& where : places) {
    INFO(where);
    const Folder folder;
    const std::string overrides = "checkpoint.every=0 ";
    const std::vector<Step> eager =
        equivalence::train(folder, "eager", curve.config, layout(where), overrides);
    for (const char* capture :
         {"graph.capture=true", "graph.capture=true graph.executor=compiled"}) {
      CHECK(same_bits(
          equivalence::train(folder, "captured", curve.config, layout(where), overrides + capture),
          eager));
    }
  }
}

}  // namespace

TEST_CASE("a captured mixture of experts has the bits of the eager one", "[mixtral]") {
  captured_is_eager({"FSDP 2 x experts 2"});
}

TEST_CASE("captured mixtures of experts have the bits of eager ones in other layouts", "[.long]") {
  captured_is_eager(
      {"one rank", "experts 2", "experts 4", "experts 2 x TP 2", "TP 2 with sequence parallel"});
}

namespace {

const std::string kBalanced =
    " --plugin " BALANCE " graph.capture=true graph.transforms=[Balance] ";

/// How many more tokens the expert with the most has than the average one, in the last step: the
/// state that the transformation has added for each layer.
double imbalance(const std::string& checkpoint) {
  double most = 0;
  int layers = 0;
  for (const auto& [name, tensor] : equivalence::tensors_of(checkpoint)) {
    if (name.starts_with("transform.") && name.find(".tokens") != std::string::npos) {
      std::vector<float> tokens(tensor.bytes.size() / sizeof(float));
      std::memcpy(tokens.data(), tensor.bytes.data(), tensor.bytes.size());
      const double sum = std::accumulate(tokens.begin(), tokens.end(), 0.0);
      most = std::max(most,
                      *std::ranges::max_element(tokens) * static_cast<double>(tokens.size()) / sum);
      ++layers;
    }
  }
  CHECK(layers > 0);
  return most;
}

}  // namespace

namespace {

void balances(const std::vector<std::string>& places) {
  const Curve curve("mixtral", "eight");
  const Folder folder;
  const std::string steps = "train.steps=120 checkpoint.every=60 ";
  const std::vector<Step> whole =
      equivalence::train(folder, "whole", curve.config, layout("one rank"), kBalanced + steps);
  CHECK(imbalance(equivalence::checkpoint(folder, "whole", 120)) < 1.3);
  for (const std::string& where : places) {
    INFO(where);
    for (const char* more : {"", "train.micro_batch=3 train.activation_checkpointing=true "}) {
      const auto other = equivalence::train(folder, "other", curve.config, layout(where),
                                            kBalanced + "checkpoint.every=0 " + more);
      CHECK(loss_difference(other, {whole.begin(), whole.begin() + 20}) <= 2e-5);
    }
    const auto rest = equivalence::train(
        folder, "rest", curve.config, layout(where),
        kBalanced + steps + "checkpoint.resume=" + equivalence::checkpoint(folder, "whole", 60));
    REQUIRE(rest.size() == 60);
    CHECK(loss_difference({rest.begin(), rest.begin() + 20},
                          {whole.begin() + 60, whole.begin() + 80}) <= 2e-5);
  }
}

}  // namespace

TEST_CASE("a transformation of captured steps gives experts equally many tokens", "[mixtral]") {
  balances({"FSDP 2 x experts 2"});
}

TEST_CASE("experts have equally many tokens on any ranks", "[.long]") {
  balances({"experts 2", "Replicate 2 x experts 2"});
}

namespace {

const std::string kLimited = " --plugin " LIMITED_MIXTRAL " ";
const std::string kCapacity =
    " --plugin " CAPACITY " graph.capture=true graph.transforms=[Capacity] ";

/// The curve's config with a copy of its model whose family is written with the limit.
std::string limited_config(const Folder& folder, const Curve& curve) {
  const std::string source = reference("mixtral/eight");
  std::filesystem::copy(source, folder / "limited");
  auto json = equivalence::json_of(source, "config.json");
  json["model_type"] = "limited_mixtral";
  folder.write("limited/config.json", json.dump());
  std::string config = curve.config;
  return config.replace(config.find(source), source.size(), folder / "limited");
}

void limits(const std::vector<std::string>& places) {
  const Curve curve("mixtral", "eight");
  const Folder folder;
  const std::string written_config = limited_config(folder, curve);
  const std::string steps = "train.steps=20 checkpoint.every=10 ";
  const std::vector<Step> plain =
      equivalence::train(folder, "plain", curve.config, layout("one rank"), steps);
  for (const std::string& where : places) {
    INFO(where);
    const std::vector<Step> written =
        equivalence::train(folder, "written", written_config, layout(where), kLimited + steps);
    CHECK(loss_difference(written, plain) > 1e-4);  // the limit is reached
    for (const char* more : {"", "graph.executor=compiled "}) {
      INFO(more);
      CHECK(same_bits(equivalence::train(folder, "replaced", curve.config, layout(where),
                                         kCapacity + steps + more),
                      written));
    }
    const std::string many = "train.micro_batch=" + std::to_string(layout(where).micro_batch) +
                             " train.activation_checkpointing=true "
                             "graph.passes=[views,common,dead,lifetimes,recompute] ";
    CHECK(loss_difference(equivalence::train(folder, "parts", curve.config, layout(where),
                                             kCapacity + steps + many),
                          written) <= 2e-5);
    // The parameters are those of the model as it is written, so either run goes on from the other.
    const std::string from = "checkpoint.resume=" + equivalence::checkpoint(folder, "replaced", 10);
    const std::vector<Step> rest = {written.begin() + 10, written.end()};
    CHECK(same_bits(
        equivalence::train(folder, "rest", curve.config, layout(where), kCapacity + steps + from),
        rest));
    CHECK(same_bits(
        equivalence::train(folder, "eager", written_config, layout(where),
                           kLimited + steps + from + " checkpoint.allow=[graph.transforms,model]"),
        rest));
  }
}

}  // namespace

TEST_CASE("replaced experts train as a model that is written with them", "[mixtral]") {
  limits({"FSDP 2 x experts 2"});
}

TEST_CASE("replaced experts train as a model that is written with them in other layouts",
          "[.long]") {
  limits({"one rank", "experts 4"});
}

TEST_CASE("a run goes on with the transformations that it had", "[mixtral]") {
  const Curve curve("mixtral", "four");
  const Folder folder;
  const Layout& where = layout("FSDP 2 x experts 2");
  const auto whole = equivalence::train(folder, "whole", curve.config, where,
                                        kBalanced + "train.steps=20 checkpoint.every=10");
  const std::string from = " checkpoint.resume=" + equivalence::checkpoint(folder, "whole", 10);
  CHECK(same_bits(equivalence::train(folder, "rest", curve.config, where, kBalanced + from),
                  {whole.begin() + 10, whole.end()}));
  const std::string without = std::string("graph.capture=true");
  const std::string config = folder.write("run.toml", curve.config + where.config);
  const auto refused = equivalence::run("train " + config + " " + without + from);
  CHECK(refused.code == 2);
  CHECK(refused.error.find("graph.transforms: [\"Balance\"] in the checkpoint, absent") !=
        std::string::npos);
  const auto rest = equivalence::train(folder, "less", curve.config, where,
                                       without + from + " checkpoint.allow=[graph.transforms]");
  CHECK(rest.size() == 10);
}

namespace {

std::string small_tokens(const Folder& folder) {
  std::vector<std::int32_t> ids(12 * 8 + 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 7 % 101);
  }
  return equivalence::write_tokens(folder, "ids.npy", ids);
}

}  // namespace

TEST_CASE("a mixture of experts goes on with its experts on other ranks", "[mixtral]") {
  const Curve curve("mixtral", "eight");
  const Folder folder;
  const std::vector<Step> whole =
      equivalence::train(folder, "whole", curve.config, layout("one rank"));
  equivalence::train(folder, "half", curve.config, layout("experts 4"),
                     "train.steps=10 checkpoint.every=10");
  const std::string from = equivalence::checkpoint(folder, "half", 10);
  for (const char* where : {"one rank", "experts 2 x TP 2"}) {
    INFO(where);
    const std::vector<Step> rest =
        equivalence::train(folder, "rest", curve.config, layout(where),
                           "graph.capture=true checkpoint.resume=" + from);
    REQUIRE(rest.size() == 10);
    CHECK(loss_difference(rest, {whole.begin() + 10, whole.end()}) <= 2e-5);
  }
}

TEST_CASE("an exported mixture of experts holds the tensors that were read", "[mixtral]") {
  const Folder own;
  const Layout& where = layout("FSDP 2 x experts 2");
  const std::string tokens = small_tokens(own);
  const std::string source = reference("mixtral/eight");
  const auto first = equivalence::train(own, "run", one_step(source, tokens, 8, 12), where);
  const std::string exported =
      equivalence::export_checkpoint(own, equivalence::checkpoint(own, "run", 1), "export");
  equivalence::holds_the_same(exported, source);
  equivalence::has_the_same_words(exported, source);
  CHECK(
      same_bits(equivalence::train(own, "again", one_step(exported, tokens, 8, 12), where), first));
}

TEST_CASE("experts that a folder has stacked, in bf16 and several files, are read", "[mixtral]") {
  const std::string source = reference("decoders/qwen3_moe_stacked");
  const auto expected = nlohmann::json::parse(equivalence::read_file(source + "/expected.json"));
  for (const char* where : {"one rank", "experts 2 x TP 2"}) {
    INFO(where);
    const Folder own;
    const std::string tokens = equivalence::write_tokens(
        own, "ids.npy", expected["tokens"].get<std::vector<std::int32_t>>());
    const auto steps = equivalence::train(own, "run", one_step(source, tokens, 9, expected["rows"]),
                                          layout(where));
    CHECK(equivalence::difference(steps[0].loss, expected["loss_f64"]) <= 2e-6);
    // An export has them one by one.
    const auto written = equivalence::tensors_of(
        equivalence::export_checkpoint(own, equivalence::checkpoint(own, "run", 1), "export"));
    const auto read = equivalence::tensors_of(source);
    const std::string layer = "model.layers.1.mlp.experts.";
    const std::vector<std::byte>& both = read.at(layer + "gate_up_proj").bytes;
    std::vector<std::byte> joined;
    for (int expert = 0; expert < 4; ++expert) {
      for (const char* matrix : {".gate_proj.weight", ".up_proj.weight"}) {
        const auto& one = written.at(layer + std::to_string(expert) + matrix).bytes;
        joined.insert(joined.end(), one.begin(), one.end());
      }
    }
    CHECK((joined == both));
  }
}

TEST_CASE("what a mixture of experts does not allow is refused before it runs", "[mixtral]") {
  const std::string made =
      small_model({.family = "mixtral", .layers = 1, .heads = 2, .ffn_dim = 16}) +
      "experts = 6\nvocab = 101\n[data]\ntokens = [\"" + reference("curves/tokens.npy") +
      "\"]\nvalidation = 0.0\nseq_len = 8\n[train]\nsteps = 1\nbatch = 12\n";
  const auto refused = [&](const std::string& where, const std::string& more,
                           const std::string& words) {
    const Folder folder;
    const std::string config = folder.write("run.toml", made + where);
    const auto result = equivalence::run("train " + config +
                                         " --dry-run log.metrics= " + "checkpoint.folder= " + more);
    INFO(more << where << result.out << result.error);
    CHECK(result.code == 2);
    CHECK(result.error.find(words) != std::string::npos);
  };
  const std::string two = mesh(R"("expert")", "2");
  refused("", "model.experts_per_token=7",
          "a token cannot have more experts than there are (6 experts, 7 per token)");
  refused("", "model.expert=6", "did you mean");
  refused(mesh(R"("expert")", "4") + kExperts, "",
          "its 6 experts cannot be split over 4 ranks; choose a size of mesh axis 'expert'");
  refused(mesh(R"("data")", "2") + kExperts, "", "expert");
  refused(two + "[[parallel]]\nstyle = \"ExpertParallel\"\naxis = \"expert\"\non = [\"lm_head\"]\n",
          "", "experts");
  refused(two + kExperts, "train.batch=5", "train.batch");
  refused(two + kExperts +
              "[[parallel]]\nstyle = \"NoParallel\"\naxis = \"expert\"\non = [\"lm_head\"]\n",
          "", "NoParallel");
}
