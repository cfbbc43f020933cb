// train.objective=classification: transformers' losses and accuracy in each way of spreading a run,
// exact continuation, folders, and what is refused before ranks start.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
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

const Layout one_rank = {"one rank", "", 2};
const std::string two = "[mesh]\naxes = [\"shard\"]\nshape = [2]\n";
const Layout sharded = {"FSDP 2",
                        two +
                            "[[parallel]]\nstyle = \"FSDP\"\naxis = \"shard\"\n"
                            "on = [\"model.layers.*\", \".\"]\n",
                        2};
const Layout replicated = {
    "Replicate 2",
    "[mesh]\naxes = [\"replicate\"]\nshape = [2]\n[[parallel]]\nstyle = \"Replicate\"\n"
    "axis = \"replicate\"\non = [\".\"]\n",
    2};
const Layout divided = {
    "tensor 2",
    "[mesh]\naxes = [\"tensor\"]\nshape = [2]\n"
    "[[parallel]]\nstyle = \"ColwiseParallel\"\naxis = \"tensor\"\n"
    "on = [\"model.layers.*.self_attn.{q,k,v}_proj\", \"model.layers.*.mlp.up_proj\"]\n"
    "[[parallel]]\nstyle = \"RowwiseParallel\"\naxis = \"tensor\"\n"
    "on = [\"model.layers.*.self_attn.o_proj\", \"model.layers.*.mlp.down_proj\"]\n",
    2};
const Layout placed = {"placed by graph.mode",
                       two + "[graph]\ncapture = true\nmode = \"fully_shard\"\n", 2};

json expected(const std::string& model) {
  return json::parse(read_file(reference("classification/curves.json")))[model];
}

/// 12 steps of 8 rows, in the order of the file.
std::string config(const std::string& from) {
  return "[model]\nfrom = \"" + from + "\"\n[data]\njsonl = [\"" +
         reference("classification/texts.jsonl") + "\"]\nvalidation_files = [\"" +
         reference("classification/validation.jsonl") + "\"]\nvalidate_every = 0\ntokenizer = \"" +
         reference("families/bert_base") +
         "\"\nseq_len = 16\norder = \"sequential\"\ntoo_long = \"cut\"\n"
         "[train]\nobjective = \"classification\"\nsteps = 12\nbatch = 8\nclip_grad_norm = 0.0\n"
         "[optimizer]\nlr = 3e-3\nweight_decay = 0.0\n"
         "options = { betas = [0.9, 0.95], eps = 1e-8 }\n[checkpoint]\nevery = 6\n";
}

double difference(const std::vector<Step>& run, const std::string& model) {
  const std::vector<double> losses = expected(model)["losses"];
  REQUIRE(run.size() == losses.size());
  double most = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    most = std::max(most, std::abs(run[i].loss - losses[i]));
  }
  return most;
}

/// The last line of a run's metrics.
json last_metrics(const Folder& folder, const std::string& name) {
  std::ifstream file(folder / (name + ".jsonl"));
  std::string last;
  for (std::string line; std::getline(file, line);) {
    last = line;
  }
  return json::parse(last);
}

/// Trains, and compares the curve, and the validation at its end.
void trains(const Folder& folder, const std::string& from, const std::string& model,
            const Layout& where, const std::string& more = "") {
  INFO(model << ", " << where.name << " " << more);
  const double found =
      difference(equivalence::train(folder, "run", config(from), where, more), model);
  CAPTURE(found);
  CHECK(found < 2e-5);
  const json end = last_metrics(folder, "run");
  CHECK(end.contains("accuracy"));
  const json validation = expected(
      model)[more.find("windows=5") == std::string::npos ? "validation" : "validation_of_five"];
  CHECK(std::abs(end["validation_loss"].get<double>() - validation["loss"].get<double>()) < 2e-5);
  CHECK(std::abs(end["validation_accuracy"].get<double>() - validation["accuracy"].get<double>()) <
        1e-6);
}

/// FSDP by the modules' names in the program.
Layout groups_of_program() {
  Layout groups = sharded;
  groups.config.replace(groups.config.find("model.layers.*"), 14, "model.bert.encoder.layer.*");
  return groups;
}

}  // namespace

TEST_CASE("a config trains an encoder as a classifier, as transformers does", "[classification]") {
  const Folder folder;
  for (const Layout& where : {divided, placed}) {
    trains(folder, reference("families/bert"), "bert", where);
  }
  // Five rows of a validation are completed to a batch.
  trains(folder, reference("families/bert"), "bert", sharded,
         "train.micro_batch=2 train.activation_checkpointing=true data.validation_windows=5");
  trains(folder, reference("families/modernbert"), "modernbert", sharded);
}

TEST_CASE("a config trains an encoder as a classifier in every other layout", "[.long]") {
  const Folder folder;
  for (const Layout& where : {one_rank, sharded, replicated}) {
    trains(folder, reference("families/bert"), "bert", where);
    trains(folder, reference("families/modernbert"), "modernbert", where);
    trains(folder, reference("families/bert"), "bert", where, "graph.capture=true");
    trains(folder, reference("classification/bert.pt2"), "bert",
           where.name == sharded.name ? groups_of_program() : where);
  }
  for (const Layout& where : {divided, placed}) {
    trains(folder, reference("families/modernbert"), "modernbert", where);
  }
}

TEST_CASE("a program of torch.export is trained as a classifier", "[classification]") {
  const Folder folder;
  for (const Layout& where : {groups_of_program(), placed}) {
    trains(folder, reference("classification/bert.pt2"), "bert", where);
  }
}

TEST_CASE("a classifier continues exactly, and its folder begins another run", "[classification]") {
  const Folder folder;
  const std::string text = config(reference("families/bert"));
  const std::vector<Step> whole = equivalence::train(folder, "whole", text, sharded);
  equivalence::train(folder, "parts", text, sharded, "train.steps=6");
  const std::vector<Step> rest = equivalence::train(
      folder, "rest", text, sharded, "checkpoint.resume=" + checkpoint(folder, "parts", 6));
  REQUIRE(rest.size() == 6);
  CHECK(same_bits(rest, {whole.begin() + 6, whole.end()}));

  const auto other = equivalence::run(
      "train " + folder.write("other.toml", text + sharded.config) +
      " --dry-run data.labels=[LABEL_2,LABEL_1,LABEL_0] checkpoint.folder=" + (folder / "other") +
      " checkpoint.resume=" + checkpoint(folder, "parts", 6));
  CHECK(other.code == 2);
  has(other.error, "data.labels: ");

  has(equivalence::succeed("checkpoint info " + checkpoint(folder, "whole", 12)),
      "bert: an encoder with 3 labels");
  const std::string out = folder / "out";
  has(equivalence::succeed("checkpoint export " + checkpoint(folder, "whole", 12) + " --to " + out),
      "an encoder (bert) with 3 labels");
  CHECK(std::filesystem::exists(out + "/tokenizer.json"));
  const json exported = json::parse(read_file(out + "/config.json"));
  CHECK(exported["architectures"][0] == "BertForSequenceClassification");
  // Its head is continued: the first loss is that of the trained model.
  const std::vector<Step> again =
      equivalence::train(folder, "again", config(out), sharded, "train.steps=1");
  CHECK(again[0].loss < whole[0].loss);
  has(equivalence::run("checkpoint export " + checkpoint(folder, "whole", 12) + " --adapter --to " +
                       (folder / "adapter"))
          .error,
      "which is exported as a folder of transformers only");
}

TEST_CASE("labels make the head, and their order is known", "[classification]") {
  const Folder folder;
  std::string records;
  for (int i = 0; i < 16; ++i) {
    records +=
        "{\"text\": \"the cat is in\", \"label\": " + std::to_string(i % 2 == 0 ? 10 : 9) + "}\n";
  }
  const std::string run = folder.write("run.toml", config(reference("families/bert_base")) +
                                                       "folder = \"" + (folder / "c") + "\"\n");
  const std::string data =
      "'data.jsonl=[\"" + folder.write("ten.jsonl", records) +
      "\"]' data.validation_files=[] data.validation=0 train.steps=2 log.metrics=";
  const auto shown = equivalence::succeed("train " + run + " --dry-run " + data);
  has(shown, "2 classes by a new head");
  has(shown, "the class of each text: 9 and 10");  // numbers by their values
  has(equivalence::succeed("train " + run + " --dry-run " + data +
                           " data.labels=['\"10\"','\"9\"']"),
      "the class of each text: 10 and 9");
  has(equivalence::succeed("data show " + run + " " + data), "label 10");
}

TEST_CASE("what a classifier cannot be trained with is refused before ranks start",
          "[classification]") {
  const Folder folder;
  const std::string run = folder.write("run.toml", config(reference("families/bert")));
  const auto refused = [&](const std::string& more) {
    const auto result = equivalence::run("train " + run + " --dry-run " + more);
    CHECK(result.code == 2);
    return result.error;
  };
  const auto with = [&](const std::string& record) {
    return "'data.jsonl=[\"" + folder.write("bad.jsonl", record + "\n") + "\"]'";
  };
  has(refused(with(R"({"text": "a"})")), "bad.jsonl:1: 'label' is missing");
  has(refused(with(R"({"text": "", "label": "LABEL_0"})")), "'text' is empty");
  has(refused(with(R"({"text": "a", "label": 0.5})")), "'label' must be a text");
  has(refused(with(R"({"text": "a", "label": ""})")), "'label' has the wrong size");
  has(refused("data.labels=[LABEL_0,LABEL_1]"), "the label 'LABEL_2' is none of data.labels");
  has(refused("data.too_long=error"), "raise data.seq_len");
  has(refused("data.seq_len=65"), "expected at most 64, got 65");
  has(refused("data.packing=documents"), "train.objective=classification does not have it");
  has(refused("train.head_rows=4"), "train.objective=classification does not have it");
  has(refused("train.objective=next_token data.labels=[a,b]"),
      "only train.objective=classification has it");
  has(refused("model.from=" + reference("families/vit") + " data.tokenizer=bytes"),
      "the encoder takes images");
  has(refused("model.from=" + reference("decoders/llama3")), "no family of encoders");
  has(refused("model.from=" + reference("exported/gpt2.pt2")), "no logits among its outputs");
  has(refused("model.from=" + reference("classification/bert.pt2") +
              " data.labels=[LABEL_0,LABEL_1,LABEL_2,LABEL_3]"),
      "expected 3 labels, got 4");
}
