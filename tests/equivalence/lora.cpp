// Low-rank updates against the stored curves of PEFT (tests/reference/lora_curves.py), and packed
// weights in every layout.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::difference;
using equivalence::Folder;
using equivalence::Layout;
using equivalence::layout;
using equivalence::reference;
using equivalence::Step;
using equivalence::usual_layouts;
using tessera::testing::small_model;

namespace {

/// The entry of a style on all linear layers of the blocks, with these options.
std::string entry(const std::string& style, const std::string& options) {
  return "[[parallel]]\nstyle = \"" + style +
         "\"\non = [\"model.layers.*.{self_attn,mlp}.*_proj\"]\noptions = { " + options + " }\n";
}

struct Curve {
  nlohmann::json json;
  std::string config;
  std::string style;

  explicit Curve(const std::string& name)
      : json(nlohmann::json::parse(equivalence::read_file(reference("lora/" + name + ".json")))) {
    config = "[model]\nfrom = \"" + reference("curves/" + json["initial_model"].get<std::string>());
    config += "\"\nadapter = \"" + reference("lora/" + json["adapter"].get<std::string>());
    config += "\"\n[data]\ntokens = [\"" + reference("curves/tokens.npy");
    config += "\"]\nvalidation = 0.0\norder = \"sequential\"\nseq_len = " + json["seq_len"].dump();
    config += "\n[train]\nsteps = " + json["steps"].dump() + "\nbatch = " + json["batch"].dump();
    config += "\nclip_grad_norm = 1.0\n[optimizer]\nname = \"adamw\"\nlr = " + json["lr"].dump();
    config += "\noptions = { betas = [0.9, 0.95], eps = 1e-8 }\nweight_decay = 0.1\n";
    style = entry("LoRA", "rank = " + json["rank"].dump() + ", alpha = " + json["alpha"].dump() +
                              ", rslora = " + json["rslora"].dump() +
                              ", dora = " + json["dora"].dump());
  }
};

Layout with(Layout where, const std::string& style) {
  where.config += style;
  return where;
}

void follows(const Curve& curve, const Layout& where, const std::string& overrides) {
  INFO(curve.json["name"] << " on " << where.name << " " << overrides);
  const Folder folder;
  const std::vector<Step> steps = equivalence::train(
      folder, "run", curve.config, with(where, curve.style), "checkpoint.every=0 " + overrides);
  REQUIRE(steps.size() == curve.json["losses"].size());
  double loss = 0;
  double grad_norm = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    loss = std::max(loss, difference(steps[i].loss, curve.json["losses"][i]));
    grad_norm = std::max(grad_norm, difference(steps[i].grad_norm, curve.json["grad_norms"][i]));
  }
  CHECK(loss <= 2e-5);
  CHECK(grad_norm <= 2e-4);  // PyTorch's own are of f32
}

}  // namespace

TEST_CASE("low-rank updates follow PEFT's curve in every layout", "[lora]") {
  const Curve curve("lora");
  for (const Layout& where : usual_layouts()) {
    follows(curve, where, "");
  }
  for (const char* where : {"one rank", "FSDP 2 x TP 2"}) {
    follows(curve, layout(where), "train.activation_checkpointing=true train.micro_batch=2");
  }
}

TEST_CASE("rank-stabilised and weight-decomposed updates follow PEFT's curves", "[lora]") {
  for (const char* name : {"rslora", "dora"}) {
    const Curve curve(name);
    for (const char* where : {"one rank", "FSDP 2", "TP 2", "FSDP 2 x TP 2"}) {
      follows(curve, layout(where), "");
    }
  }
}

TEST_CASE("a run with packed weights has one curve in every layout", "[lora]") {
  // Widths of which two ranks get whole blocks of 64.
  const std::string config =
      small_model({.vocab = 128, .dim = 128, .kv_heads = 2, .ffn_dim = 256}) +
      "[data]\ntokens = [\"" + reference("curves/tokens.npy") +
      "\"]\nvalidation = 0.0\nseq_len = 24\n[train]\nsteps = 6\nbatch = 12\n"
      "[optimizer]\nlr = 1e-3\n";
  for (const char* options : {"rank = 4", "rank = 4, dora = true, alpha = 8"}) {
    std::vector<Step> expected;
    for (const Layout& where : usual_layouts()) {
      for (const char* overrides : {"", "train.activation_checkpointing=true"}) {
        INFO(options << " on " << where.name << " " << overrides);
        const Folder folder;
        const std::vector<Step> steps = equivalence::train(
            folder, "run", config, with(where, entry("QLoRA", options)), overrides);
        if (expected.empty()) {
          expected = steps;
        }
        REQUIRE(steps.size() == 6);
        for (std::size_t i = 0; i < steps.size(); ++i) {
          CHECK(difference(steps[i].loss, expected[i].loss) <= 2e-5);
          CHECK(difference(steps[i].grad_norm, expected[i].grad_norm) <= 2e-4);
        }
      }
    }
  }
}

TEST_CASE("packed weights are counted as the weights that they are", "[lora]") {
  const auto frozen = [](const std::string& style, const std::string& options) {
    const Folder folder;
    const std::string file = folder.write(
        "run.toml", small_model({.vocab = 128, .dim = 128, .layers = 1, .ffn_dim = 256}) +
                        "[data]\ntokens = [\"" + reference("curves/tokens.npy") +
                        "\"]\nvalidation = 0.0\nseq_len = 24\n[train]\nbatch = 12\n" +
                        layout("FSDP 2").config + entry(style, options));
    const std::string out = equivalence::succeed("train " + file + " --dry-run");
    const std::size_t at = out.find("  frozen ");
    REQUIRE(at != std::string::npos);
    return out.substr(at, out.find('\n', at) - at);
  };
  // Two tables of 128 x 128, 3 norms; 2 x 128 x 128 for q and o, as many for k and v, 3 x 256 x
  // 128.
  const std::string plain = frozen("LoRA", "");
  CHECK(plain.find(" 197 k of ") != std::string::npos);
  CHECK(frozen("QLoRA", "base = \"none\"") == plain);
  CHECK(frozen("QLoRA", "") == plain);
}
