// Experts with a balanced load and on several axes, in whole runs: PyTorch's curve with the terms
// of the loss, and the same loads, biases and losses in every layout.
#include <algorithm>
#include <nlohmann/json.hpp>
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
using equivalence::reference;
using equivalence::same_bits;
using equivalence::Step;
using tessera::testing::small_model;

namespace {

std::string mesh(const std::string& axes, const std::string& shape) {
  return "[mesh]\naxes = [" + axes + "]\nshape = [" + shape + "]\n";
}

std::string style(const std::string& name, const std::string& axis, const std::string& on) {
  return "[[parallel]]\nstyle = \"" + name + "\"\naxis = \"" + axis + "\"\non = [" + on + "]\n";
}

std::string experts(const std::string& axis) {
  return style("ExpertParallel", axis, R"("**.experts")");
}

const std::string kAll = R"("model.layers.*", ".")";
const Layout kOneRank = {"one rank", "", 4};
const Layout kTwo = {"experts 2", mesh(R"("expert")", "2") + experts("expert"), 3};
const Layout kTwoAxes = {"experts 2 x 2", mesh(R"("a", "b")", "2, 2") + experts("a") + experts("b"),
                         1};
/// The experts that a rank has are sharded along one axis, other layers along the other one.
const Layout kOwnShards = {
    "experts FSDP 2 x (experts 2, FSDP 2 of the rest)",
    mesh(R"("shard", "expert")", "2, 2") + experts("expert") +
        style("FSDP", "shard", R"("**.experts")") +
        style("FSDP", "expert", R"("**.self_attn", "model.embed_tokens", "lm_head")"),
    1};

/// What the metrics say of the experts, by step.
std::vector<nlohmann::json> loads(const std::string& metrics) {
  std::vector<nlohmann::json> all;
  const std::string text = equivalence::read_file(metrics);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const auto line = nlohmann::json::parse(text.substr(at, end - at));
    nlohmann::json own;
    for (const char* key : {"expert_tokens", "experts/largest", "experts/dropped"}) {
      if (line.contains(key)) {
        own[key] = line[key];
      }
    }
    all.push_back(own);
    at = end + 1;
  }
  return all;
}

const std::string kBalanced =
    "checkpoint.every=10 train.steps=10 experts.balance_loss=0.02 experts.z_loss=0.001 "
    "experts.bias_rate=0.002 experts.capacity=1.25 ";

}  // namespace

TEST_CASE("losses that balance experts are PyTorch's", "[experts]") {
  const Curve curve("decoders", "qwen2_moe_balanced");
  const std::string weights = "experts.balance_loss=0.05 experts.z_loss=0.02 ";
  follows(curve, kOneRank, weights);
  const Layout sharded = {"FSDP 2", mesh(R"("shard")", "2") + style("FSDP", "shard", kAll), 3};
  follows(curve, sharded,
          weights + "train.micro_batch=3 train.activation_checkpointing=true graph.capture=true");
  follows(curve, sharded, weights + "train.head_rows=8");
}

TEST_CASE("experts on two axes, and with shards of their own, follow PyTorch", "[experts]") {
  const Curve curve("mixtral", "eight");
  follows(curve, kTwoAxes, "train.micro_batch=1 graph.capture=true");
  follows(curve, kOwnShards, "train.activation_checkpointing=true");
}

TEST_CASE("loads, biases and losses of balanced experts are equal in every layout", "[experts]") {
  const Curve curve("mixtral", "eight");
  const Folder folder;
  const auto one = equivalence::train(folder, "one", curve.config, kOneRank, kBalanced);
  const auto expected = loads(folder / "one.jsonl");
  REQUIRE(expected.size() == 10);
  REQUIRE(expected[0]["experts/dropped"].get<double>() > 0);
  const auto stored = equivalence::tensors_of(equivalence::checkpoint(folder, "one", 10));
  const std::string bias = "model.model.layers.0.mlp.choice_bias@0";
  REQUIRE(stored.contains(bias));
  for (const Layout* where : {&kTwo, &kTwoAxes, &kOwnShards}) {
    INFO(where->name);
    const std::string micro = "train.micro_batch=" + std::to_string(where->micro_batch);
    const auto eager = equivalence::train(folder, "eager", curve.config, *where, kBalanced + micro);
    CHECK(loss_difference(eager, one) <= 2e-6);
    CHECK(loads(folder / "eager.jsonl") == expected);
    CHECK(equivalence::tensors_of(equivalence::checkpoint(folder, "eager", 10)).at(bias).bytes ==
          stored.at(bias).bytes);
    const auto captured = equivalence::train(folder, "captured", curve.config, *where,
                                             kBalanced + micro + " graph.capture=true");
    CHECK(same_bits(captured, eager));
    CHECK(loads(folder / "captured.jsonl") == expected);
  }
}

TEST_CASE("a run with balanced experts continues in another layout", "[experts]") {
  const Curve curve("mixtral", "eight");
  const Folder folder;
  const std::string halves = kBalanced + "checkpoint.every=5 ";
  const auto whole = equivalence::train(folder, "whole", curve.config, kOneRank, halves);
  equivalence::train(folder, "parts", curve.config, kTwoAxes, halves + "train.steps=5");
  const std::string from =
      halves + "checkpoint.resume='" + equivalence::checkpoint(folder, "parts", 5) + "'";
  const std::vector<Step> last(whole.begin() + 5, whole.end());
  const auto rest = equivalence::train(folder, "rest", curve.config, kTwo, from);
  REQUIRE(rest.size() == last.size());
  CHECK(rest.front().step == 6);
  CHECK(loss_difference(rest, last) <= 2e-6);
  // Biases and the counts of this step, in the same layout: in all bits.
  const auto same = equivalence::train(
      folder, "same", curve.config, kOneRank,
      halves + "checkpoint.resume='" + equivalence::checkpoint(folder, "whole", 5) + "'");
  CHECK(same_bits(same, last));
  const auto stored = equivalence::tensors_of(equivalence::checkpoint(folder, "same", 10));
  for (const auto& [name, tensor] :
       equivalence::tensors_of(equivalence::checkpoint(folder, "whole", 10))) {
    INFO(name);
    CHECK(stored.at(name).bytes == tensor.bytes);
  }
}

TEST_CASE("stages have experts with a bias, and refuse losses of balance", "[experts]") {
  const Curve curve("mixtral", "eight");
  const Layout stages = {"stages 2", mesh(R"("stage")", "2") + style("Pipeline", "stage", R"(".")"),
                         3};
  const std::string bias = "checkpoint.every=0 train.steps=6 experts.bias_rate=0.01 ";
  const Folder folder;
  const auto one = equivalence::train(folder, "one", curve.config, kOneRank, bias);
  const auto two =
      equivalence::train(folder, "two", curve.config, stages, bias + "train.micro_batch=3");
  CHECK(loss_difference(two, one) <= 2e-6);
  CHECK(loads(folder / "two.jsonl") == loads(folder / "one.jsonl"));
  const std::string config = folder.write("refused.toml", curve.config + stages.config);
  const auto refused = equivalence::run(
      "train " + config +
      " --dry-run log.metrics= checkpoint.folder= train.micro_batch=3 experts.balance_loss=0.1");
  CHECK(refused.code == 2);
  CHECK(refused.error.find("balance by experts.bias_rate") != std::string::npos);
}

TEST_CASE("texts of a model with a bias are those of its checkpoint and its export", "[experts]") {
  const Folder folder;
  std::string rhyme;
  for (int i = 0; i < 60; ++i) {
    rhyme += "one two buckle my shoe, three four knock at the door, " + std::to_string(i) + ". ";
  }
  folder.write("rhyme.txt", rhyme);
  const std::string config = small_model({.family = "mixtral", .ffn_dim = 32}) +
                             "experts = 4\n[experts]\nbias_rate = 0.3\n[data]\n"
                             "text = [\"rhyme.txt\"]\nseq_len = 32\nvalidation = 0.0\n[train]\n"
                             "steps = 30\nbatch = 12\n[optimizer]\nlr = 1e-2\n";
  equivalence::train(folder, "run", config, kTwo);
  const std::string stored = equivalence::checkpoint(folder, "run", 30);
  const auto text = [](const std::string& from, const std::string& more) {
    return equivalence::succeed("generate '" + from +
                                "' --prompt 'one two' --tokens 40 --temperature 0 " + more);
  };
  const std::string expected = text(stored, "");
  CHECK(text(stored, "--ranks 2 --split 2") == expected);
  const std::string exported = equivalence::export_checkpoint(folder, stored, "export");
  REQUIRE(equivalence::tensors_of(exported).contains("model.layers.1.mlp.choice_bias"));
  CHECK(text(exported, "") == expected);
}

TEST_CASE("what balances no experts is refused before it runs", "[experts]") {
  const std::string made = "[data]\ntokens = [\"" + reference("curves/tokens.npy") +
                           "\"]\nvalidation = 0.0\nseq_len = 8\n[train]\nsteps = 1\nbatch = 12\n";
  const auto refused = [&](const std::string& model, const std::string& more,
                           const std::string& words) {
    const Folder folder;
    const std::string config = folder.write("run.toml", "[model]\nvocab = 101\n" + model + made);
    const auto result =
        equivalence::run("train " + config + " --dry-run log.metrics= checkpoint.folder= " + more);
    INFO(more << result.out << result.error);
    CHECK(result.code == 2);
    CHECK(result.error.find(words) != std::string::npos);
  };
  const std::string mixtral =
      "family = \"mixtral\"\ndim = 32\nlayers = 2\nheads = 2\nffn_dim = 16\nexperts = 6\n";
  const std::string plain = "dim = 32\nlayers = 2\nheads = 2\n";
  refused(plain, "experts.balance_loss=0.01", "the model has no mixture of experts");
  refused(mixtral, "experts.capacity=-1", "experts.capacity");
  refused(mixtral, "experts.balance_los=0.1", "did you mean 'experts.balance_loss'");
  const std::string axes = mesh(R"("a", "b")", "2, 2") + experts("a") + experts("b");
  const Folder folder;
  const std::string config =
      folder.write("run.toml", "[model]\nvocab = 101\n" + mixtral + made + axes);
  const auto result =
      equivalence::run("train " + config + " --dry-run log.metrics= checkpoint.folder=");
  CHECK(result.code == 2);
  CHECK(result.error.find("6 experts") != std::string::npos);
}
