// GPT-2, a family of models that is a plugin, against transformers: curves in every layout, folders
// in and out, generation.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "curve.hpp"
#include "hub_folder.hpp"
#include "small_model.hpp"
#include "support.hpp"

using equivalence::Curve;
using equivalence::difference;
using equivalence::Folder;
using equivalence::follows;
using equivalence::Layout;
using equivalence::one_step;
using equivalence::reference;
using equivalence::usual_layouts;
using tessera::testing::small_model;

namespace {

/// The same layout with the names of GPT-2's modules.
Layout of_gpt2(Layout where) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"model.layers.", "transformer.h."},
      {"self_attn", "attn"},
      {"{gate,up}_proj", "c_fc"},
      {"down_proj", "c_proj"}};
  for (const auto& [llama, gpt2] : names) {
    for (std::size_t at = where.config.find(llama); at != std::string::npos;
         at = where.config.find(llama, at + gpt2.size())) {
      where.config.replace(at, llama.size(), gpt2);
    }
  }
  return where;
}

void follows_everywhere(const std::string& name) {
  const Curve curve("gpt2", name);
  int tried = 0;
  for (const Layout& where : usual_layouts()) {
    if (where.name.find("sequence") == std::string::npos) {
      follows(curve, of_gpt2(where), "train.micro_batch=" + std::to_string(where.micro_batch));
      ++tried;
    }
  }
  CHECK(tried >= 3);  // of all layouts 8
  follows(curve, of_gpt2(equivalence::layout("FSDP 2 x TP 2")),
          "train.activation_checkpointing=true graph.capture=true");
}

/// Fully sharded, tensor, sequence and loss parallel together. The embedding of positions comes
/// after the tokens' and before the sequence is split.
const Layout kSequence = {"FSDP 2 x TP 2 with sequence and loss parallel", R"~([mesh]
axes = ["shard", "tensor"]
shape = [2, 2]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["transformer.wte"]
options = { input = "Replicate", output = "Replicate" }
[[parallel]]
style = "PrepareModuleOutput"
axis = "tensor"
on = ["transformer.wpe"]
options = { output = "Replicate", desired = "Shard(1)" }
[[parallel]]
style = "SequenceParallel"
axis = "tensor"
on = ["transformer.h.*.ln_{1,2}", "transformer.ln_f"]
[[parallel]]
style = "PrepareModuleInput"
axis = "tensor"
on = ["transformer.h.*.{attn,mlp}"]
options = { input = "Shard(1)", desired = "Replicate" }
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["transformer.h.*.attn.{q,k,v}_proj", "transformer.h.*.mlp.c_fc"]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["transformer.h.*.attn.o_proj", "transformer.h.*.mlp.c_proj"]
options = { output = "Shard(1)" }
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["lm_head"]
options = { input = "Shard(1)", output = "Shard(-1)" }
[[parallel]]
style = "LossParallel"
axis = "tensor"
on = ["loss"]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["transformer.h.*", "."]
)~",
                          2};

/// Tokens for a batch of 12 sequences of 8.
std::string some_tokens(const Folder& folder) {
  std::vector<std::int32_t> ids(12 * 8 + 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 7 % 101);
  }
  return equivalence::write_tokens(folder, "ids.npy", ids);
}

/// A run of one step from a stored folder is refused with these words.
void refused(const std::string& more, const std::string& words) {
  const Folder folder;
  const std::string config =
      folder.write("run.toml", one_step(reference("gpt2/tied"), some_tokens(folder), 8, 12));
  const auto result =
      equivalence::run("train " + config + " log.metrics= checkpoint.folder= " + more);
  INFO(result.error);
  CHECK(result.code == 2);
  CHECK(result.error.find(words) != std::string::npos);
}

std::string greedy_text(const std::string& checkpoint, const std::string& prompt,
                        std::size_t tokens) {
  return equivalence::succeed("generate '" + checkpoint + "' --prompt '" + prompt + "' --tokens " +
                              std::to_string(tokens) + " --temperature 0");
}

}  // namespace

TEST_CASE("GPT-2 with tied embeddings follows PyTorch's curve in every layout", "[gpt2]") {
  follows_everywhere("tied");
}

TEST_CASE("GPT-2 without tied embeddings follows PyTorch's curve in every layout", "[gpt2]") {
  follows_everywhere("untied");
}

TEST_CASE("GPT-2 follows PyTorch's curve with sequence and loss parallel", "[gpt2]") {
  for (const char* name : {"tied", "untied"}) {
    follows(Curve("gpt2", name), kSequence, "train.micro_batch=2");
  }
}

TEST_CASE("a folder as GPT-2's first ones gives transformers' loss", "[gpt2]") {
  const std::string model = reference("gpt2/first_form");
  const auto expected = equivalence::json_of(model, "expected.json");
  double sum = 0;
  for (const auto& row : expected["input_ids"]) {
    const Folder folder;
    const auto ids = row.get<std::vector<std::int32_t>>();
    const std::string tokens = equivalence::write_tokens(folder, "ids.npy", ids);
    const auto steps = equivalence::train(
        folder, "run", one_step(model, tokens, static_cast<std::int64_t>(ids.size()) - 1, 1),
        of_gpt2(equivalence::layout("TP 2")));
    REQUIRE(steps.size() == 1);
    sum += steps[0].loss;
  }
  CHECK(difference(sum / 2, expected["loss"]) <= 2e-6);
}

TEST_CASE("an exported GPT-2 holds the tensors that were read, from every kind of shards",
          "[gpt2]") {
  for (const std::string name : {"tied", "untied", "first_form"}) {
    for (const char* where : {"one rank", "FSDP 3", "FSDP 2 x TP 2"}) {
      INFO(name << " on " << where);
      const Folder own;
      const std::string tokens = some_tokens(own);
      const Layout layout = of_gpt2(equivalence::layout(where));
      const std::string source = reference("gpt2/" + name);
      const auto first = equivalence::train(own, "run", one_step(source, tokens, 8, 12), layout);
      const std::string exported =
          equivalence::export_checkpoint(own, equivalence::checkpoint(own, "run", 1), "export");
      if (name != "first_form") {  // transformers adds the prefix to its names, too
        equivalence::holds_the_same(exported, source);
      }
      equivalence::has_the_same_words(exported, source);
      CHECK(equivalence::same_bits(
          equivalence::train(own, "again", one_step(exported, tokens, 8, 12), layout), first));
    }
  }
}

TEST_CASE("GPT-2's text goes on from any of its beginnings", "[gpt2]") {
  const Folder folder;
  std::string rhyme;
  for (int i = 0; i < 60; ++i) {
    rhyme += "one two buckle my shoe, three four knock at the door, " + std::to_string(i) + ". ";
  }
  folder.write("rhyme.txt", rhyme);
  equivalence::train(folder, "run",
                     small_model({.family = "gpt2"}) +
                         "[data]\ntext = [\"rhyme.txt\"]\nseq_len = 40\nvalidation = 0.0\n"
                         "[train]\nsteps = 40\nbatch = 12\n[optimizer]\nlr = 1e-2\n",
                     of_gpt2(equivalence::layout("FSDP 2 x TP 2")));
  const std::string from = equivalence::checkpoint(folder, "run", 40);
  const std::string prompt = "one two";
  const std::string text = greedy_text(from, prompt, 24);
  REQUIRE(text.size() == prompt.size() + 24 + 1);
  REQUIRE(text.find_first_of("'\0") == std::string::npos);
  for (const std::size_t done : {1, 7, 23}) {
    INFO(done);
    CHECK(greedy_text(from, text.substr(0, prompt.size() + done), 24 - done) == text);
  }
}

TEST_CASE("what a GPT-2's folder does not allow is refused", "[gpt2]") {
  refused("data.seq_len=33",
          "the model has no positions for sequences of this length (expected at "
          "most 32, got 33)");
  refused("model.family=llama", "is of another family (expected \"gpt2\", got \"llama\")");
  refused("model.dim=8", "model.dim: the folder of model.from determines this");
  refused("model.adapter=" + reference("adapters/lora") +
              " 'parallel=[{style=LoRA,on=[\"**.attn.q_proj\"]}]'",
          "adapters need a model whose parameters have Hugging Face's names");
}
