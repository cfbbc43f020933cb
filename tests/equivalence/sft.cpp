// Fine-tuning on conversations against the stored curves of trl (tests/reference/sft_curves.py).
#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

using equivalence::difference;
using equivalence::Folder;
using equivalence::Layout;
using equivalence::layout;
using equivalence::reference;
using equivalence::Step;

namespace {

using Json = nlohmann::json;

std::string config_of(const Json& curve) {
  const auto file = [&](const char* key) {
    return "\"" + reference("sft/" + curve[key].get<std::string>()) + "\"";
  };
  return "[model]\nfrom = " + file("initial_model") +
         (curve.contains("adapter") ? "\nadapter = " + file("adapter") : "") +
         "\n[data]\njsonl = [" + file("chats") +
         "]\nvalidation = 0.0\norder = \"sequential\"\nseq_len = " + curve["seq_len"].dump() +
         "\n[train]\nsteps = " + curve["steps"].dump() + "\nbatch = " + curve["batch"].dump() +
         "\nclip_grad_norm = 1.0\n[optimizer]\nlr = " + curve["lr"].dump() +
         "\noptions = { betas = " + curve["betas"].dump() + ", eps = 1e-8 }\nweight_decay = 0.0\n";
}

std::string updates_of(const Json& curve) {
  return curve.contains("adapter")
             ? "[[parallel]]\nstyle = \"LoRA\"\non = "
               "[\"model.layers.*.{self_attn,mlp}.*_proj\"]\noptions = { rank = " +
                   curve["rank"].dump() + ", alpha = " + curve["alpha"].dump() + " }\n"
             : "";
}

}  // namespace

TEST_CASE("fine-tuning on conversations follows trl's curves of 50 steps", "[sft]") {
  for (const std::string name : {"full", "lora"}) {
    const auto curve = Json::parse(equivalence::read_file(reference("sft/" + name + ".json")));
    for (const char* where :
         {"one rank", "FSDP 2", "FSDP 2 x TP 2", "FSDP 2 x TP 2 with sequence and loss parallel"}) {
      INFO(name << " on " << where);
      const Folder folder;
      Layout spread = layout(where);
      spread.config += updates_of(curve);
      const std::vector<Step> steps =
          equivalence::train(folder, "run", config_of(curve), spread, "checkpoint.folder=");
      REQUIRE(steps.size() == 50);
      REQUIRE(curve["losses"].size() == 50);
      double loss = 0;
      double norm = 0;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        loss = std::max(loss, difference(steps[i].loss, curve["losses"][i]));
        norm = std::max(norm, difference(steps[i].grad_norm, curve["grad_norms"][i]));
      }
      CHECK(loss <= 1e-4);
      CHECK(norm <= 1e-3);
    }
  }
}
