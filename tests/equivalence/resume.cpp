// A run that stopped and went on is the run that never stopped.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::checkpoint;
using equivalence::Folder;
using equivalence::layout;
using equivalence::Layout;
using equivalence::layouts;
using equivalence::loss_difference;
using equivalence::reference;
using equivalence::same_bits;
using equivalence::Step;
using tessera::testing::small_model;

namespace {

/// Everything that has a state: shuffled data, dropout, a schedule, moments.
std::string config(bool tied) {
  return small_model({.vocab = 101,
                      .dim = 30,
                      .kv_heads = 2,
                      .head_dim = 6,
                      .ffn_dim = 38,
                      .dropout = 0.1}) +
         "tie_embeddings = " + std::string(tied ? "true" : "false") + "\n[data]\ntokens = [\"" +
         reference("curves/tokens_short.npy") +
         "\"]\nseq_len = 24\nvalidation = 0.0\norder = \"shuffled\"\n"
         "[train]\nsteps = 6\nbatch = 12\nseed = 7\n"
         "[optimizer]\nlr = 1e-3\nschedule = \"cosine\"\nwarmup = 2\nmin_lr_ratio = 0.1\n"
         "[checkpoint]\nevery = 3\n";
}

std::vector<Step> last_three(const std::vector<Step>& steps) {
  REQUIRE(steps.size() == 6);
  return {steps.begin() + 3, steps.end()};
}

std::string resume_from(const std::string& path) { return "checkpoint.resume='" + path + "'"; }

/// The weights after the last step.
std::string weights(const Folder& folder, const std::string& name) {
  const std::string to =
      equivalence::export_checkpoint(folder, checkpoint(folder, name, 6), name + "-export");
  return equivalence::read_file(to + "/model.safetensors");
}

void resumes_exactly(const std::string& text, const Layout& where, const std::string& overrides) {
  INFO(where.name << " " << overrides);
  const Folder folder;
  const auto whole = equivalence::train(folder, "whole", text, where, overrides);
  const auto rest = equivalence::train(
      folder, "rest", text, where, overrides + " " + resume_from(checkpoint(folder, "whole", 3)));
  REQUIRE(rest.size() == 3);
  CHECK(rest.front().step == 4);
  CHECK(same_bits(rest, last_three(whole)));
  CHECK((weights(folder, "rest") == weights(folder, "whole")));
}

}  // namespace

TEST_CASE("a resumed run gives the same bits in every layout", "[resume]") {
  for (const Layout& where : layouts()) {
    resumes_exactly(config(false), where, "");
  }
}

TEST_CASE("a resumed run gives the same bits with tied embeddings, accumulation and recomputation",
          "[resume]") {
  for (const char* name : {"one rank", "FSDP 3", "TP 2 with sequence parallel", "FSDP 2 x TP 2"}) {
    resumes_exactly(config(true), layout(name),
                    "train.activation_checkpointing=true train.micro_batch=" +
                        std::to_string(layout(name).micro_batch));
  }
}

TEST_CASE("a resumed run gives the same bits with frozen parameters", "[resume]") {
  for (const char* name : {"FSDP 3", "FSDP 2 x TP 2"}) {
    resumes_exactly(config(false), layout(name),
                    "'train.freeze=[\"model.layers.0.**\",\"**.q_proj.weight\"]'");
  }
}

TEST_CASE("a resumed run gives the same bits with parameters in bf16", "[resume]") {
  for (const char* name : {"FSDP 3", "FSDP 2 x TP 2"}) {
    resumes_exactly(config(false), layout(name), "train.parameters=bf16 train.precision=bf16");
  }
}

TEST_CASE("a resumed run gives the same bits with SGD", "[resume]") {
  const std::string sgd = "optimizer.name=sgd optimizer.lr=0.1 ";
  resumes_exactly(config(false), layout("FSDP 2 x TP 2"), sgd);
  resumes_exactly(config(false), layout("FSDP 3"),
                  sgd + "optimizer.options.momentum=0.9 optimizer.options.nesterov=true");
}

TEST_CASE("a checkpoint of a 2 x 2 mesh resumes on any other", "[resume]") {
  for (const bool tied : {false, true}) {
    const Folder folder;
    const auto whole = equivalence::train(folder, "whole", config(tied), layout("FSDP 2 x TP 2"));
    const std::string from = resume_from(checkpoint(folder, "whole", 3));
    for (const Layout& where : layouts()) {
      INFO(where.name << (tied ? ", tied" : ", untied"));
      const auto rest = equivalence::train(folder, "rest", config(tied), where, from);
      REQUIRE(rest.size() == 3);
      CHECK(rest.front().step == 4);
      CHECK(loss_difference(rest, last_three(whole)) <= 2e-5);
    }
    // The losses tell whether moments and progress came along: weights alone go on otherwise.
    const std::string start =
        equivalence::export_checkpoint(folder, checkpoint(folder, "whole", 3), "start");
    const std::string text = config(tied);
    const auto weights_only = equivalence::train(
        folder, "weights_only",
        "[model]\nfrom = \"" + start + "\"\ndropout = 0.1\n" + text.substr(text.find("[data]")),
        layout("one rank"), "train.steps=3");
    CHECK(loss_difference(weights_only, last_three(whole)) > 1e-4);
  }
}

TEST_CASE("a checkpoint of one rank or of short last shards resumes on a 2 x 2 mesh", "[resume]") {
  for (const char* name : {"one rank", "FSDP 4"}) {
    const Folder folder;
    const auto whole = equivalence::train(folder, "whole", config(false), layout(name));
    const auto rest = equivalence::train(folder, "rest", config(false), layout("FSDP 2 x TP 2"),
                                         resume_from(checkpoint(folder, "whole", 3)));
    INFO(name);
    REQUIRE(rest.size() == 3);
    CHECK(loss_difference(rest, last_three(whole)) <= 2e-5);
  }
}
