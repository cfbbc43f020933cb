// Frozen parameters: they keep their bits, the others train alike in every layout.
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::checkpoint;
using equivalence::Folder;
using equivalence::Layout;
using equivalence::layouts;
using equivalence::reference;
using equivalence::Step;
using equivalence::usual_layouts;
using tessera::testing::small_model;

namespace {

const std::string config =
    small_model({.vocab = 101, .layers = 3, .kv_heads = 2, .ffn_dim = 48, .dropout = 0.1}) +
    "[data]\ntokens = [\"" + reference("curves/tokens_short.npy") +
    "\"]\nseq_len = 24\nvalidation = 0.0\n"
    "[train]\nsteps = 4\nbatch = 12\nseed = 7\nclip_grad_norm = 0.5\n"
    // All of the first layers: no gradient reaches them. A part of the last one.
    "freeze = [\"model.embed_tokens.*\", \"model.layers.{0,1}.**\", \"**.2.mlp.up_proj.weight\"]\n"
    "[optimizer]\nlr = 1e-2\n[checkpoint]\nevery = 2\n";

bool is_frozen(const std::string& name) {
  return name.starts_with("model.embed_tokens.") || name.starts_with("model.layers.0.") ||
         name.starts_with("model.layers.1.") || name == "model.layers.2.mlp.up_proj.weight";
}

/// The bytes of each tensor of a checkpoint, as its export has them.
std::map<std::string, std::string> weights(const Folder& folder, const std::string& run,
                                           std::int64_t step) {
  const std::string file =
      equivalence::read_file(equivalence::export_checkpoint(folder, checkpoint(folder, run, step),
                                                            run + "-" + std::to_string(step)) +
                             "/model.safetensors");
  std::uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof size);
  std::map<std::string, std::string> all;
  const auto header = nlohmann::json::parse(file.substr(8, size));
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      const auto begin = entry["data_offsets"][0].get<std::size_t>();
      const auto end = entry["data_offsets"][1].get<std::size_t>();
      all[name] = file.substr(8 + size + begin, end - begin);
    }
  }
  return all;
}

}  // namespace

TEST_CASE("frozen parameters keep their bits, and the others train alike in every layout",
          "[freeze]") {
  const Folder folder;
  const std::vector<Step> expected = equivalence::train(folder, "one", config, layouts().front());
  REQUIRE(expected.size() == 4);
  CHECK(expected.back().loss != expected.front().loss);
  int number = 0;
  for (const Layout& where : usual_layouts()) {
    INFO(where.name);
    const std::string name = "run" + std::to_string(++number);
    const std::string overrides = number % 2 == 0
                                      ? "train.activation_checkpointing=true train.micro_batch=" +
                                            std::to_string(where.micro_batch)
                                      : "";
    CHECK(equivalence::loss_difference(equivalence::train(folder, name, config, where, overrides),
                                       expected) < 2e-6);
    const auto before = weights(folder, name, 2);
    const auto after = weights(folder, name, 4);
    REQUIRE(before.size() == after.size());
    for (const auto& [tensor, bytes] : before) {
      INFO(tensor);
      CHECK((after.at(tensor) == bytes) == is_frozen(tensor));
    }
    // Only trained parameters have state.
    const std::string listed =
        equivalence::read_file(checkpoint(folder, name, 4) + "/checkpoint.json");
    CHECK(listed.find("optimizer.exp_avg.lm_head.weight") != std::string::npos);
    CHECK(listed.find("optimizer.exp_avg.model.embed_tokens.weight") == std::string::npos);
  }
}

TEST_CASE("patterns of frozen parameters that cannot be meant are refused", "[freeze]") {
  const Folder folder;
  const std::string file = folder.write("run.toml", config);
  const auto error_of = [&](const std::string& freeze) {
    const equivalence::Result result = equivalence::run("train " + file + " '" + freeze + "'");
    CHECK(result.code == 2);
    return result.error;
  };
  CHECK(error_of("train.freeze=[model.embed_token.*]")
            .find("train.freeze: the pattern 'model.embed_token.*' matches no parameter") !=
        std::string::npos);
  CHECK(error_of("train.freeze=[\"**\"]").find("so there is nothing to train") !=
        std::string::npos);
}
