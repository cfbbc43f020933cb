// A mixture of experts, a family of models that is an example (apps/examples/mixtral), against
// transformers: curves with the experts split over ranks, folders in and out, checkpoints.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "curve.hpp"
#include "hub_folder.hpp"
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
       mesh(R"("replicate", "expert")", "2, 2") + kExperts + style("Replicate", "replicate"), 3}};
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

const std::string kPlugin = " --plugin " MIXTRAL " ";

}  // namespace

TEST_CASE("a mixture of experts follows PyTorch's curve wherever its experts are", "[mixtral]") {
  for (const char* name : {"four", "eight"}) {
    const Curve curve("mixtral", name);
    for (const Layout& where : layouts()) {
      follows(curve, where, kPlugin);
      follows(curve, where,
              kPlugin + "train.micro_batch=" + std::to_string(where.micro_batch) +
                  " train.activation_checkpointing=true");
    }
  }
}

TEST_CASE("a captured mixture of experts has the bits of the eager one", "[mixtral]") {
  const Curve curve("mixtral", "four");
  for (const char* where : {"one rank", "experts 2", "experts 4", "FSDP 2 x experts 2"}) {
    INFO(where);
    const Folder folder;
    const std::string overrides = kPlugin + "checkpoint.every=0 ";
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

namespace {

const std::string kBalanced =
    " --plugin " MIXTRAL " --plugin " BALANCE " graph.capture=true graph.transforms=[Balance] ";

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

TEST_CASE("a transformation of captured steps gives experts equally many tokens", "[mixtral]") {
  const Curve curve("mixtral", "eight");
  const Folder folder;
  const std::string steps = "train.steps=120 checkpoint.every=60 ";
  const std::vector<Step> whole =
      equivalence::train(folder, "whole", curve.config, layout("one rank"), kBalanced + steps);
  CHECK(imbalance(equivalence::checkpoint(folder, "whole", 120)) < 1.3);
  for (const char* where : {"experts 2", "FSDP 2 x experts 2", "Replicate 2 x experts 2"}) {
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

namespace {

const std::string kLimited = " --plugin " MIXTRAL_LIMITED " ";
const std::string kCapacity =
    " --plugin " MIXTRAL " --plugin " CAPACITY " graph.capture=true graph.transforms=[Capacity] ";

}  // namespace

TEST_CASE("replaced experts train as a model that is written with them", "[mixtral]") {
  const Curve curve("mixtral", "eight");
  const Folder folder;
  const std::string steps = "train.steps=20 checkpoint.every=10 ";
  const std::vector<Step> plain =
      equivalence::train(folder, "plain", curve.config, layout("one rank"), kPlugin + steps);
  for (const char* where : {"one rank", "experts 4", "FSDP 2 x experts 2"}) {
    INFO(where);
    const std::vector<Step> written =
        equivalence::train(folder, "written", curve.config, layout(where), kLimited + steps);
    CHECK(loss_difference(written, plain) > 1e-4);  // the limit is reached
    for (const char* more : {"", "graph.executor=interpreter ", "graph.executor=compiled "}) {
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
        equivalence::train(folder, "eager", curve.config, layout(where),
                           kLimited + steps + from + " checkpoint.allow=[graph.transforms]"),
        rest));
  }
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
  const std::string without = kPlugin + "graph.capture=true";
  const std::string config = folder.write("run.toml", curve.config + where.config);
  const auto refused = equivalence::run("train " + config + without + from);
  CHECK(refused.code == 2);
  CHECK(refused.error.find("graph.transforms: [\"Balance\"] in the checkpoint, absent") !=
        std::string::npos);
  const auto rest = equivalence::train(folder, "less", curve.config, where,
                                       without + from + " checkpoint.allow=[graph.transforms]");
  CHECK(rest.size() == 10);
}

TEST_CASE("a mixture of experts goes on with its experts on other ranks", "[mixtral]") {
  const Curve curve("mixtral", "eight");
  const Folder folder;
  const std::vector<Step> whole =
      equivalence::train(folder, "whole", curve.config, layout("one rank"), kPlugin);
  equivalence::train(folder, "half", curve.config, layout("experts 4"),
                     kPlugin + "train.steps=10 checkpoint.every=10");
  const std::string from = equivalence::checkpoint(folder, "half", 10);
  for (const char* where : {"one rank", "experts 2", "FSDP 2 x experts 2", "experts 4"}) {
    INFO(where);
    const std::vector<Step> rest =
        equivalence::train(folder, "rest", curve.config, layout(where),
                           kPlugin + "graph.capture=true checkpoint.resume=" + from);
    REQUIRE(rest.size() == 10);
    CHECK(loss_difference(rest, {whole.begin() + 10, whole.end()}) <= 2e-5);
  }
}

TEST_CASE("an exported mixture of experts holds the tensors that were read", "[mixtral]") {
  for (const std::string name : {"four", "eight"}) {
    for (const char* where : {"one rank", "experts 4", "FSDP 2 x experts 2"}) {
      INFO(name << " on " << where);
      const Folder own;
      std::vector<std::int32_t> ids(12 * 8 + 1);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>(i * 7 % 101);
      }
      const std::string tokens = equivalence::write_tokens(own, "ids.npy", ids);
      const std::string source = reference("mixtral/" + name);
      const auto first =
          equivalence::train(own, "run", one_step(source, tokens, 8, 12), layout(where), kPlugin);
      const std::string exported = own / "export";
      equivalence::succeed("checkpoint export " + equivalence::checkpoint(own, "run", 1) +
                           " --to " + exported + kPlugin);
      equivalence::holds_the_same(exported, source);
      equivalence::has_the_same_words(exported, source);
      CHECK(same_bits(equivalence::train(own, "again", one_step(exported, tokens, 8, 12),
                                         layout(where), kPlugin),
                      first));
    }
  }
}

TEST_CASE("what a mixture of experts does not allow is refused before it runs", "[mixtral]") {
  const std::string made =
      "[model]\nfamily = \"mixtral\"\ndim = 32\nlayers = 1\nheads = 2\nffn_dim = 16\nexperts = "
      "6\nvocab = 101\n"
      "[data]\ntokens = [\"" +
      reference("curves/tokens.npy") +
      "\"]\nvalidation = 0.0\nseq_len = 8\n[train]\nsteps = 1\nbatch = 12\n";
  const auto refused = [&](const std::string& where, const std::string& more,
                           const std::string& words) {
    const Folder folder;
    const std::string config = folder.write("run.toml", made + where);
    const auto result = equivalence::run(
        "train " + config + " --dry-run log.metrics= " + "checkpoint.folder= " + more + kPlugin);
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
