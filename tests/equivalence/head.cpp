// Logits in parts (train.head_rows): the losses are those of whole logits in every layout, for both
// objectives, eager and captured; a layout that brings logits elsewhere is refused. Gradients that
// products add up (AccumulatingProducts) give the same losses too.
#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::Folder;
using equivalence::layout;
using equivalence::Layout;
using equivalence::loss_difference;
using equivalence::reference;
using equivalence::Step;
using equivalence::usual_layouts;
using tessera::testing::small_model;

namespace {

std::string config(const std::string& model) {
  return small_model({.vocab = 101, .layers = 1, .kv_heads = 2, .head_dim = 6, .ffn_dim = 38}) +
         model + "[data]\ntokens = [\"" + reference("curves/tokens_short.npy") +
         "\"]\nseq_len = 24\nvalidation = 0.2\nvalidate_every = 4\n[train]\nsteps = 4\nbatch = 12\n"
         "seed = 7\n[optimizer]\nlr = 1e-2\n";
}

/// The largest relative difference of losses and of norms of gradients.
double difference(const std::vector<Step>& a, const std::vector<Step>& b) {
  std::vector<Step> norms_a = a;
  std::vector<Step> norms_b = b;
  for (std::vector<Step>* const steps : {&norms_a, &norms_b}) {
    for (Step& step : *steps) {
      step.loss = step.grad_norm;
    }
  }
  return std::max(loss_difference(a, b), loss_difference(norms_a, norms_b));
}

}  // namespace

TEST_CASE("logits in parts give the losses of whole logits in every layout", "[head]") {
  const Folder folder;
  for (const std::string model : {"", "tie_embeddings = true\nfamily = \"gemma2\"\n"}) {
    const std::vector<Step> whole =
        equivalence::train(folder, "whole", config(model), layout("one rank"));
    CHECK(whole.back().loss < whole.front().loss);
    for (const Layout& where : usual_layouts()) {
      if (where.name == "TP 2 with sequence parallel" ||
          (!model.empty() && where.name.find("FSDP 2 x") == std::string::npos)) {
        continue;  // see below; the caps are in the layouts with all styles
      }
      INFO(where.name << " " << model);
      // Of 7 tokens of each row, 24 in all; and of one.
      CHECK(difference(equivalence::train(folder, "parts", config(model), where,
                                          "train.head_rows=" + std::to_string(7 * 12)),
                       whole) <= 5e-6);
      CHECK(
          difference(equivalence::train(folder, "captured", config(model), where,
                                        "train.head_rows=1 graph.capture=true train.micro_batch=" +
                                            std::to_string(where.micro_batch)),
                     whole) <= 5e-6);
    }
  }
}

TEST_CASE("logits in parts give the losses of whole logits in bf16", "[head]") {
  const Folder folder;
  const std::string bf16 = "train.precision=bf16 ";
  const std::vector<Step> whole =
      equivalence::train(folder, "whole", config(""), layout("one rank"), bf16);
  for (const char* name : {"one rank", "FSDP 2 x TP 2 with sequence and loss parallel"}) {
    INFO(name);
    CHECK(loss_difference(equivalence::train(folder, "parts", config(""), layout(name),
                                             bf16 + "train.head_rows=20"),
                          whole) <= 2e-3);
  }
}

TEST_CASE("preferences take logits in parts too", "[head]") {
  const Folder folder;
  const std::string records = reference("dpo/texts");
  const std::string text =
      "[model]\nfrom = \"" + reference("sft/initial") + "\"\n[data]\njsonl = [\"" + records +
      ".jsonl\"]\nvalidation_files = [\"" + records +
      "-held-out.jsonl\"]\nseq_len = 64\n[train]\nobjective = \"dpo\"\nsteps = 3\nbatch = 4\n"
      "[optimizer]\nlr = 1e-3\n";
  const std::vector<Step> whole = equivalence::train(folder, "whole", text, layout("one rank"));
  for (const char* name : {"one rank", "FSDP 2 x TP 2 with sequence and loss parallel"}) {
    INFO(name);
    CHECK(difference(equivalence::train(folder, "parts", text, layout(name), "train.head_rows=50"),
                     whole) <= 1e-5);
  }
}

TEST_CASE("a layout that gathers logits is refused before ranks start", "[head]") {
  const Folder folder;
  const std::string file =
      folder.write("run.toml", config("") + layout("TP 2 with sequence parallel").config);
  const equivalence::Result result = equivalence::run("train '" + file + "' train.head_rows=8");
  CHECK(result.code == 2);
  CHECK(result.out.find("step ") == std::string::npos);
  INFO(result.error);
  CHECK(result.error.find("module 'lm_head': its logits are brought into another layout before the "
                          "loss, so they cannot be computed in parts") != std::string::npos);
}

TEST_CASE("products that add up gradients give the losses of sums after them", "[head]") {
  const Folder folder;
  const std::string captured = "graph.capture=true train.micro_batch=";
  for (const char* name : {"one rank", "TP 2", "Replicate 2", "FSDP 2 x TP 2"}) {
    INFO(name);
    const Layout& where = layout(name);
    const std::string parts = captured + std::to_string(where.micro_batch);
    const std::vector<Step> expected = equivalence::train(folder, "sums", config(""), where, parts);
    CHECK(difference(equivalence::train(folder, "products", config(""), where,
                                        parts + " 'graph.transforms=[AccumulatingProducts]'"),
                     expected) <= 5e-6);
  }
  const std::string file = folder.write("run.toml", config(""));
  const auto program = [&](const std::string& more) {
    const std::string to = folder / "program.txt";
    equivalence::succeed("graph capture '" + file + "' train.micro_batch=3 --to '" + to + "'" +
                         more);
    return equivalence::read_file(to);
  };
  CHECK(program("").find(" linear_grad_weight_(") == std::string::npos);
  const std::string changed = program(" 'graph.transforms=[AccumulatingProducts]'");
  CHECK(changed.find(" linear_grad_weight_(") != std::string::npos);
  CHECK(changed.find(" linear_grad_input_(") != std::string::npos);
  equivalence::succeed("graph stats '" + (folder / "program.txt") + "'");
}
