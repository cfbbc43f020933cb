// Programs of torch.export as models of runs: PyTorch's losses in each way of spreading them, exact
// continuation, exports, and what is refused before ranks start.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "sealed_zip.hpp"
#include "support.hpp"
#include "texts.hpp"

using equivalence::checkpoint;
using equivalence::Folder;
using equivalence::Layout;
using equivalence::read_file;
using equivalence::reference;
using equivalence::same_bits;
using equivalence::Step;
using nlohmann::json;
using tessera::testing::has;

namespace {

const Layout one_rank = {"one rank", "", 4};
const Layout sharded = {"FSDP 2",
                        "[mesh]\naxes = [\"shard\"]\nshape = [2]\n[[parallel]]\nstyle = \"FSDP\"\n"
                        "axis = \"shard\"\non = [\"model.transformer.h.*\", \".\"]\n",
                        3};
const Layout placed = {"placed by graph.mode",
                       "[mesh]\naxes = [\"shard\"]\nshape = [2]\n[graph]\ncapture = true\n"
                       "mode = \"fully_shard\"\n",
                       3};

const json& expected() {
  static const json all = json::parse(read_file(reference("exported/next_token.json")));
  return all;
}

/// A run of 20 steps of which each has all 12 rows.
std::string config(const Folder& folder, const std::string& program) {
  std::vector<std::int32_t> tokens = expected()["tokens"];
  return "[model]\nfrom = \"" + reference("exported/" + program + ".pt2") +
         "\"\n[data]\ntokens = [\"" + equivalence::write_tokens(folder, "rows.npy", tokens) +
         "\"]\nseq_len = 16\nvalidation = 0.0\n[train]\nsteps = 20\nbatch = 12\n"
         "clip_grad_norm = 0.0\n[optimizer]\nlr = 1e-2\nweight_decay = 0.0\n"
         "options = { betas = [0.9, 0.95], eps = 1e-8 }\n[checkpoint]\nevery = 10\n";
}

double difference(const std::vector<Step>& run, const std::string& program) {
  const std::vector<double> losses = expected()[program];
  REQUIRE(run.size() == losses.size());
  double most = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    most = std::max(most, std::abs(run[i].loss - losses[i]));
  }
  return most;
}

std::vector<Step> trained(const Folder& folder, const std::string& name, const std::string& program,
                          const Layout& where, const std::string& more = "") {
  return equivalence::train(folder, name, config(folder, program), where, more);
}

}  // namespace

TEST_CASE("a program of torch.export trains by model.from as PyTorch trains it", "[exported]") {
  const Folder folder;
  for (const Layout& where : {one_rank, sharded, placed}) {
    INFO(where.name);
    const double found = difference(trained(folder, "run", "gpt2", where), "gpt2");
    CAPTURE(found);
    CHECK(found < 2e-5);
  }
  const double again =
      difference(trained(folder, "run", "gpt2", sharded,
                         "train.micro_batch=3 train.activation_checkpointing=true"),
                 "gpt2");
  CAPTURE(again);
  CHECK(again < 2e-5);
}

TEST_CASE("a program with a loss of its own is trained by that loss, over ranks too",
          "[exported]") {
  const Folder folder;
  Layout shards = sharded;  // the program has no blocks
  shards.config.replace(shards.config.find("\"model.transformer.h.*\", "), 25, "");
  for (const Layout& where : {one_rank, shards, placed}) {
    INFO(where.name);
    const double found =
        difference(trained(folder, "run", "own_loss", where, "train.micro_batch=3"), "own_loss");
    CAPTURE(found);
    CHECK(found < 2e-5);
  }
}

TEST_CASE("a run of a program continues exactly, and its export has PyTorch's names",
          "[exported]") {
  const Folder folder;
  const std::vector<Step> whole = trained(folder, "whole", "gpt2", sharded);
  trained(folder, "parts", "gpt2", sharded, "train.steps=10");
  const std::vector<Step> rest = trained(folder, "rest", "gpt2", sharded,
                                         "checkpoint.resume=" + checkpoint(folder, "parts", 10));
  REQUIRE(rest.size() == 10);
  CHECK(same_bits(rest, {whole.begin() + 10, whole.end()}));
  const std::string out =
      equivalence::export_checkpoint(folder, checkpoint(folder, "whole", 20), "out");
  const std::string header = read_file(out + "/model.safetensors").substr(8, 20000);
  has(header, "\"model.transformer.h.1.attn.c_attn.weight\"");
  has(header, "\"model.transformer.wte.weight\"");  // the first name of a tied parameter
}

TEST_CASE("a run of a program finds the file where it is now, and refuses another one",
          "[exported]") {
  const Folder folder;
  const std::string stored = read_file(reference("exported/gpt2.pt2"));
  const std::string first = folder.write("first.pt2", stored);
  const std::string text = config(folder, "gpt2");
  const auto resumed = [&](const std::string& from) {
    return equivalence::run(
        "train " + folder.write("run.toml", text) + " train.steps=4 model.from=" + from +
        " train.threads=1 log.metrics= checkpoint.folder=" + (folder / "elsewhere") +
        " checkpoint.resume=" + checkpoint(folder, "run", 2));
  };
  trained(folder, "run", "gpt2", one_rank, "train.steps=2 checkpoint.every=2 model.from=" + first);
  const std::string moved = folder / "moved.pt2";
  std::filesystem::rename(first, moved);
  const auto found = resumed(moved);
  INFO(found.error);
  CHECK(found.code == 0);
  has(equivalence::succeed("checkpoint export " + checkpoint(folder, "run", 2) +
                           " --no-tokenizer --to " + (folder / "out")),
      "tensors");
  // Another file under its name: other weights, and another graph.
  has(resumed(reference("exported/own_loss.pt2")).error, "it is a checkpoint of another run");
  std::string changed = stored;
  const std::size_t weight = changed.rfind("data/weights/weight_", changed.find("PK\x01\x02"));
  REQUIRE(weight != std::string::npos);
  changed[weight + 200] ^= 1;
  tessera::testing::seal_zip(changed);
  const auto other = resumed(folder.write("moved.pt2", changed));
  CHECK(other.code == 2);
  has(other.error, "it is a checkpoint of another run");
  has(other.error, "model.from: ");
  // A run that begins from the checkpoint builds the program, which is not where it was.
  const auto lost = equivalence::run("train " + folder.write("run.toml", text) +
                                     " --dry-run model.from=" + checkpoint(folder, "run", 2));
  CHECK(lost.code == 2);
  has(lost.error, "is not there any more");
}

TEST_CASE("what a program cannot do is refused before ranks start", "[exported]") {
  const Folder folder;
  const std::string file = folder.write("run.toml", config(folder, "gpt2"));
  const auto refused = [&](const std::string& more) {
    const auto result = equivalence::run("train " + file + " --dry-run " + more);
    CHECK(result.code == 2);
    return result.error;
  };
  has(refused("data.seq_len=33"), "expected at most 32, got 33");
  has(refused("data.seq_len=3"), "(4 to 32)");
  has(refused("train.batch=1"), "(2 to 64)");
  has(refused("model.dropout=0.1"), "the dropout that it was exported with");
  has(refused("train.head_rows=8"), "train.head_rows");
  has(refused("model.from=" + reference("exported/convolutions.pt2")),
      "the program is not a model of the next token: its input 'x'");
  has(refused("model.from=" + reference("exported/complex.pt2")),
      "operator aten._fft_r2c.default: 1");
}

TEST_CASE("what is in a program is described", "[exported]") {
  const std::string text = equivalence::succeed("model describe " + reference("exported/gpt2.pt2"));
  has(text, "(2 to 64), ");
  has(text, "(4 to 32)]");
  has(text, "2 of model.transformer.h.*");
  has(text, "8 aten.addmm.default");
  has(text, "a model of the next token, vocabulary 64");
  const auto other = equivalence::run("model describe " + reference("exported/convolutions.pt2"));
  CHECK(other.code == 2);
  has(other.out, "model.from does not take it");
  has(equivalence::succeed("model describe " + reference("classification/bert.pt2")),
      "model.from takes it with train.objective=classification: 3 classes of texts");
}
