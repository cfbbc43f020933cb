// The built-in families of decoders against transformers: curves in layouts with split heads,
// folders in and out, windows with a cache.
#include <cstdint>
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
using equivalence::one_step;
using equivalence::reference;
using equivalence::same_bits;

namespace {

/// A family's stored model: data/FOLDER/NAME, and what runs of it need besides.
struct Family {
  std::string folder;
  std::string name;
  std::string plugin = "";
};

const std::vector<Family> kFamilies = {{"decoders", "llama3"},
                                       {"decoders", "mistral"},
                                       {"decoders", "qwen2"},
                                       {"decoders", "qwen3"},
                                       {"decoders", "gemma2"},
                                       {"decoders", "gemma3"},
                                       {"decoders", "phi3"},
                                       {"mixtral", "four"},
                                       {"decoders", "qwen3_moe"},
                                       {"decoders", "qwen2_moe"},
                                       {"decoders", "dots1", "--plugin " DOTS1 " "}};

/// FSDP 2 x TP 2. Norms of heads, where the family has them, see the heads of their rank; each
/// expert is split as other feed-forward parts are.
Layout split_heads(const std::string& name) {
  const bool experts = name == "four" || name.ends_with("_moe") || name == "dots1";
  const bool dense = name != "four";
  std::string config = R"([mesh]
axes = ["shard", "tensor"]
shape = [2, 2]
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["**.{q,k,v}_proj")";
  config += dense ? R"(, "**.{gate,up}_proj"])" : "]";
  config += R"(
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["**.o_proj")";
  config += dense ? R"(, "**.down_proj")" : "";
  config += experts ? R"(, "**.experts"])" : "]";
  if (name.starts_with("qwen3") || name == "gemma3" || name == "dots1") {
    config += R"toml(
[[parallel]]
style = "SequenceParallel"
axis = "tensor"
on = ["**.{q,k}_norm"]
options = { desired = "Shard(2)" })toml";
  }
  config += R"(
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)";
  return {"FSDP 2 x TP 2", config, 2};
}

const Layout kOneRank = {"one rank", "", 4};
const Layout kSharded = {"FSDP 2",
                         R"([mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)",
                         3};

/// Captured steps of a family, by both executors, beside eager ones.
void captured_as_eager(const Family& family) {
  INFO(family.name);
  const Curve curve(family.folder, family.name);
  const Folder folder;
  const Layout where = split_heads(family.name);
  const auto run = [&](const char* name, const std::string& more) {
    return equivalence::train(folder, name, curve.config, where,
                              family.plugin + "checkpoint.every=0" + more);
  };
  const auto eager = run("eager", "");
  for (const char* executor : {"planned", "compiled"}) {
    CHECK(same_bits(run("captured", std::string(" graph.capture=true graph.executor=") + executor),
                    eager));
  }
}

/// Those with what no other has: windows with bases of their own, experts with groups and a bias.
bool is_unlike_others(const Family& family) {
  return family.name == "gemma3" || family.name == "dots1" || family.name == "qwen2_moe";
}

}  // namespace

TEST_CASE("decoders of every family follow PyTorch's curves", "[decoders]") {
  for (const auto& [folder, name, plugin] : kFamilies) {
    const Curve curve(folder, name);
    follows(curve, kOneRank, plugin);
    follows(curve, split_heads(name), plugin);
  }
}

TEST_CASE("decoders that recompute activations follow PyTorch's curves", "[.long]") {
  for (const auto& [folder, name, plugin] : kFamilies) {
    const Curve curve(folder, name);
    for (const Layout& where : {kSharded, split_heads(name)}) {
      follows(curve, where,
              plugin + "train.micro_batch=" + std::to_string(where.micro_batch) +
                  " train.activation_checkpointing=true");
    }
  }
}

TEST_CASE("captured steps of decoders have the bits of eager ones", "[decoders]") {
  for (const Family& family : kFamilies) {
    if (is_unlike_others(family)) {
      captured_as_eager(family);
    }
  }
}

TEST_CASE("captured steps of the other decoders have the bits of eager ones", "[.long]") {
  for (const Family& family : kFamilies) {
    if (!is_unlike_others(family)) {
      captured_as_eager(family);
    }
  }
}

TEST_CASE("exported decoders hold the tensors and words that were read", "[decoders]") {
  for (const auto& [folder, name, plugin] : kFamilies) {
    for (const Layout& where : {split_heads(name)}) {
      INFO(name << " on " << where.name);
      const Folder own;
      std::vector<std::int32_t> ids(12 * 8 + 1);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<std::int32_t>(i * 7 % 101);
      }
      const std::string tokens = equivalence::write_tokens(own, "ids.npy", ids);
      const std::string source = reference(folder + "/" + name);
      const auto first =
          equivalence::train(own, "run", one_step(source, tokens, 8, 12), where, plugin);
      const std::string exported = own / "export";
      equivalence::succeed("checkpoint export " + equivalence::checkpoint(own, "run", 1) +
                           " --no-tokenizer --to " + exported + " " + plugin);
      equivalence::holds_the_same(exported, source);
      equivalence::has_the_same_words(exported, source);
      CHECK(same_bits(
          equivalence::train(own, "again", one_step(exported, tokens, 8, 12), where, plugin),
          first));
    }
  }
}
