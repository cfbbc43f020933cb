// train.objective=classification of texts and images: transformers' losses and accuracy in each way
// of spreading a run, exact continuation, folders, and what is refused before ranks start.
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
/// Of a decoder, whose feed-forward part has a gate.
const Layout gated = {"tensor 2 of a decoder",
                      "[mesh]\naxes = [\"tensor\"]\nshape = [2]\n"
                      "[[parallel]]\nstyle = \"ColwiseParallel\"\naxis = \"tensor\"\n"
                      "on = [\"model.layers.*.mlp.{gate,up}_proj\"]\n"
                      "[[parallel]]\nstyle = \"RowwiseParallel\"\naxis = \"tensor\"\n"
                      "on = [\"model.layers.*.mlp.down_proj\"]\n",
                      2};
const Layout placed = {"placed by graph.mode",
                       two + "[graph]\ncapture = true\nmode = \"fully_shard\"\n", 2};

const std::string pictures = reference("image_classification/");

json expected(const std::string& model) {
  return json::parse(read_file(model == "vit" ? pictures + "curves.json"
                                              : reference("classification/curves.json")))[model];
}

/// A run of the words of token_classification, whose results are `model`'s there.
struct Tagged {
  std::string model;
  std::string from() const { return reference("token_classification/") + model; }
  std::string config() const {
    return "[model]\nfrom = \"" + from() + "\"\n[data]\njsonl = [\"" +
           reference("token_classification/words.jsonl") + "\"]\nvalidation_files = [\"" +
           reference("token_classification/validation.jsonl") +
           "\"]\nvalidate_every = 0\ntokenizer = \"" + reference("families/bert_base") +
           "\"\nseq_len = 16\norder = \"sequential\"\ntoo_long = \"cut\"\n"
           "[train]\nobjective = \"token_classification\"\nsteps = 12\nbatch = 8\n"
           "clip_grad_norm = 0.0\n[optimizer]\nlr = 1e-3\nweight_decay = 0.0\n"
           "options = { betas = [0.9, 0.95], eps = 1e-8 }\n[checkpoint]\nevery = 6\n";
  }
  json expected() const {
    return json::parse(read_file(reference("token_classification/curves.json")))[model];
  }
};

/// 12 steps of 8 images, in the order of the file.
std::string image_config(const std::string& from) {
  return "[model]\nfrom = \"" + from + "\"\n[data]\njsonl = [\"" + pictures +
         "images.jsonl\"]\nvalidation_files = [\"" + pictures +
         "validation.jsonl\"]\nvalidate_every = 0\norder = \"sequential\"\n"
         "[train]\nobjective = \"classification\"\nsteps = 12\nbatch = 8\nclip_grad_norm = 0.0\n"
         "[optimizer]\nlr = 1e-3\nweight_decay = 0.0\n"
         "options = { betas = [0.9, 0.95], eps = 1e-8 }\n[checkpoint]\nevery = 6\n";
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
  const double found = difference(
      equivalence::train(folder, "run", model == "vit" ? image_config(from) : config(from), where,
                         more),
      model);
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

/// Trains, and compares the curve, and the validation at its end.
void tags(const Folder& folder, const std::string& model, const Layout& where,
          const std::string& more = "") {
  INFO(model << ", " << where.name << " " << more);
  const Tagged run{model};
  const std::vector<double> losses = run.expected()["losses"];
  const std::vector<Step> steps = equivalence::train(folder, "run", run.config(), where, more);
  REQUIRE(steps.size() == losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(std::abs(steps[i].loss - losses[i]) < 2e-5);
  }
  const json end = last_metrics(folder, "run");
  const json validation = run.expected()["validation"];
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

TEST_CASE("a config trains a classifier of images, as transformers does", "[classification]") {
  const Folder folder;
  trains(folder, pictures + "vit", "vit", sharded, "train.micro_batch=2 graph.capture=true");
  trains(folder, pictures + "vit", "vit", divided, "train.activation_checkpointing=true");
}

TEST_CASE("a config trains a classifier of images in every other layout", "[.long]") {
  const Folder folder;
  for (const Layout& where : {one_rank, sharded, replicated, divided, placed}) {
    trains(folder, pictures + "vit", "vit", where);
  }
  trains(folder, pictures + "vit", "vit", divided, "graph.capture=true");
}

TEST_CASE("a classifier of images continues exactly, and its folder begins another run",
          "[classification]") {
  const Folder folder;
  const std::string text = image_config(pictures + "vit");
  const std::vector<Step> whole = equivalence::train(folder, "whole", text, sharded);
  equivalence::train(folder, "parts", text, sharded, "train.steps=6");
  const std::vector<Step> rest = equivalence::train(
      folder, "rest", text, divided, "checkpoint.resume=" + checkpoint(folder, "parts", 6));
  REQUIRE(rest.size() == 6);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    CHECK(std::abs(rest[i].loss - whole[i + 6].loss) < 2e-5);
  }
  const std::vector<Step> same = equivalence::train(
      folder, "same", text, sharded, "checkpoint.resume=" + checkpoint(folder, "parts", 6));
  CHECK(same_bits(same, {whole.begin() + 6, whole.end()}));

  const std::string out = folder / "out";
  has(equivalence::succeed("checkpoint export " + checkpoint(folder, "whole", 12) + " --to " + out),
      "an encoder (vit) with 3 labels as float32, config.json, preprocessor_config.json");
  CHECK(json::parse(read_file(out + "/config.json"))["architectures"][0] ==
        "ViTForImageClassification");
  // Nothing of how images become inputs is lost.
  CHECK(json::parse(read_file(out + "/preprocessor_config.json")) ==
        json::parse(read_file(pictures + "vit/preprocessor_config.json")));
  const std::vector<Step> again =
      equivalence::train(folder, "again", image_config(out), sharded, "train.steps=1");
  CHECK(again[0].loss < whole[0].loss);
}

TEST_CASE("a classifier of images says what it reads, and refuses what is not for it",
          "[classification]") {
  const Folder folder;
  const std::string run = folder.write("run.toml", image_config(pictures + "vit"));
  const auto shown = equivalence::succeed("train " + run + " --dry-run");
  has(shown, "images of 12 x 12 in patches of 4 x 4; 3 classes");
  has(shown, "40 images to train on");
  has(shown, "the class of each image: bars, disc and wave");
  has(equivalence::succeed("data show " + run + " --rows 1"), "images/00.jpg, 12 x 12, label");
  has(equivalence::succeed("data check " + run), "40 images");
  const auto refused = [&](const std::string& more) {
    const auto result = equivalence::run("train " + run + " --dry-run " + more);
    CHECK(result.code == 2);
    return result.error;
  };
  has(refused("data.seq_len=16"), "only texts have it, and the model takes images");
  has(refused("'data.jsonl=[\"" + reference("classification/texts.jsonl") + "\"]'"),
      "'image' is missing (expected 'image' and 'label')");
  has(refused("train.batch=48"),
      "too few images to train on (expected at least 48, one batch, got "
      "40)");
  const auto with_processor = [&](const std::string& name, const json& value) {
    const std::string own = folder / "own";
    std::filesystem::remove_all(own);
    std::filesystem::copy(pictures + "vit", own);
    json changed = json::parse(read_file(own + "/preprocessor_config.json"));
    changed[name] = value;
    std::ofstream(own + "/preprocessor_config.json") << changed.dump();
    return refused("model.from=" + own);
  };
  has(with_processor("size", {{"shortest_edge", 12}}), "size: expected the model's image_size");
  has(with_processor("resample", 0), "resample: expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic)");
  has(with_processor("do_center_crop", true), "images are not cropped");
  has(with_processor("image_std", {1, 0, 1}), "image_std: expected 3 numbers more than 0");
  has(with_processor("do_sharpen", true), "do_sharpen: is not understood");
  has(with_processor("do_resize", false), "does not resize (do_resize)");
}

TEST_CASE("a config trains a decoder as a classifier, as transformers does", "[classification]") {
  const Folder folder;
  const std::string llama = reference("classification/llama");
  trains(folder, llama, "llama", sharded,
         "train.micro_batch=2 train.activation_checkpointing=true data.validation_windows=5");
  trains(folder, llama, "llama", gated, "graph.capture=true");
  trains(folder, reference("classification/qwen3"), "qwen3", placed, "train.steps=3");
}

TEST_CASE("a config trains decoders of other families, and in every other layout, as classifiers",
          "[.long]") {
  const Folder folder;
  for (const char* const name : {"qwen3", "gemma2", "phi3", "gpt_neox", "falcon", "qwen3_moe"}) {
    trains(folder, reference("classification/") + name, name, one_rank, "train.steps=3");
    trains(folder, reference("classification/") + name, name, sharded,
           "train.steps=3 graph.capture=true");
  }
  for (const Layout& where : {one_rank, replicated, gated, placed}) {
    trains(folder, reference("classification/llama"), "llama", where);
  }
}

TEST_CASE("a decoder that tells classes continues exactly, and its folder begins another run",
          "[classification]") {
  const Folder folder;
  const std::string text = config(reference("classification/llama"));
  const std::vector<Step> whole = equivalence::train(folder, "whole", text, sharded);
  equivalence::train(folder, "parts", text, sharded, "train.steps=6");
  const std::vector<Step> rest = equivalence::train(
      folder, "rest", text, sharded, "checkpoint.resume=" + checkpoint(folder, "parts", 6));
  CHECK(same_bits(rest, {whole.begin() + 6, whole.end()}));
  has(equivalence::succeed("checkpoint info " + checkpoint(folder, "whole", 12)),
      "llama: a decoder with 3 labels");
  const std::string out = folder / "out";
  has(equivalence::succeed("checkpoint export " + checkpoint(folder, "whole", 12) + " --to " + out),
      "a decoder (llama) with 3 labels");
  const json exported = json::parse(read_file(out + "/config.json"));
  CHECK(exported["architectures"][0] == "LlamaForSequenceClassification");
  CHECK(exported["pad_token_id"] == 0);
  CHECK(exported["id2label"]["2"] == "LABEL_2");
  const std::vector<Step> again =
      equivalence::train(folder, "again", config(out), sharded, "train.steps=1");
  CHECK(again[0].loss < whole[0].loss);
  has(equivalence::run("generate " + checkpoint(folder, "whole", 12) + " --prompt a").error,
      "another head on it");
}

TEST_CASE(
    "a decoder of the next token gets a head for classes, where transformers has such a class",
    "[classification]") {
  const Folder folder;
  const std::string run = folder.write("run.toml", config(reference("classification/llama")));
  const auto dry = [&](const std::string& more) {
    return equivalence::run("train " + run + " --dry-run " + more);
  };
  // Of the same vocabulary: a folder of the next token.
  const std::string base = folder / "base";
  std::filesystem::copy(reference("classification/llama"), base);
  json words = json::parse(read_file(base + "/config.json"));
  words["architectures"] = {"LlamaForCausalLM"};
  std::ofstream(base + "/config.json") << words.dump();
  has(dry("model.from=" + base).out, "3 classes by a new head");
  words["architectures"] = {"LlamaForTokenClassification"};
  std::ofstream(base + "/config.json") << words.dump();
  has(dry("model.from=" + base).error, "another head on it");
  words["architectures"] = {"LlamaForSequenceClassification"};
  words["id2label"] = {{"0", "good"}};
  words["label2id"] = {{"good", 0}};
  std::ofstream(base + "/config.json") << words.dump();
  has(dry("model.from=" + base).error, "one label is a regression");
  has(dry("model.from=" + reference("families/granite")).error,
      "transformers has no class of the family 'granite' that tells classes");
}

TEST_CASE("a config trains a classifier of words, as transformers does", "[classification]") {
  const Folder folder;
  tags(folder, "bert", sharded, "train.micro_batch=2 graph.capture=true");
  tags(folder, "bert", divided);
  tags(folder, "modernbert", placed);
}

TEST_CASE("a config trains a classifier of words in every other layout", "[.long]") {
  const Folder folder;
  for (const char* const model : {"bert", "modernbert"}) {
    for (const Layout& where : {one_rank, sharded, replicated, divided, placed}) {
      tags(folder, model, where);
    }
    tags(folder, model, one_rank, "graph.capture=true");
  }
}

TEST_CASE("a classifier of words continues exactly, and its folder begins another run",
          "[classification]") {
  const Folder folder;
  const Tagged run{"bert"};
  const std::vector<Step> whole = equivalence::train(folder, "whole", run.config(), sharded);
  equivalence::train(folder, "parts", run.config(), sharded, "train.steps=6");
  const std::vector<Step> rest = equivalence::train(
      folder, "rest", run.config(), sharded, "checkpoint.resume=" + checkpoint(folder, "parts", 6));
  CHECK(same_bits(rest, {whole.begin() + 6, whole.end()}));
  const std::string out = folder / "out";
  has(equivalence::succeed("checkpoint export " + checkpoint(folder, "whole", 12) + " --to " + out),
      "an encoder (bert) with 3 labels");
  CHECK(json::parse(read_file(out + "/config.json"))["architectures"][0] ==
        "BertForTokenClassification");
  const std::vector<Step> again =
      equivalence::train(folder, "again", run.config(), sharded, "train.steps=1 model.from=" + out);
  CHECK(again[0].loss < whole[0].loss);
}

TEST_CASE("words keep their labels, and what does not fit is refused", "[classification]") {
  const Folder folder;
  const std::string run = folder.write("run.toml", Tagged{"bert"}.config());
  const auto with = [&](const std::string& record) {
    return "'data.jsonl=[\"" + folder.write("one.jsonl", record + "\n") +
           "\"]' data.validation_files=[] data.validation=0 train.batch=1";
  };
  // The second token of a word has no label, and neither has a word whose label is null.
  const auto shown = equivalence::succeed(
      "data show " + run + " --rows 1 " +
      with(R"({"words": ["the", "sea.", "is"], "labels": ["O", "place", null], "id": 7})"));
  has(shown, "2 labels");
  has(shown, "=place .|");
  const auto refused = [&](const std::string& more) {
    const auto result = equivalence::run("train " + run + " --dry-run " + more);
    CHECK(result.code == 2);
    return result.error;
  };
  has(refused(with(R"({"words": ["a"]})")), "one.jsonl:1: 'labels' is missing");
  has(refused(with(R"({"words": ["a", "b"], "labels": ["O"]})")), "lists of equal length");
  has(refused(with(R"({"words": ["a b"], "labels": ["O"]})")), "word 1 must be a text without");
  has(refused(with(R"({"words": ["a", ""], "labels": ["O", "O"]})")), "word 2 must be a text");
  has(refused(with(R"({"words": ["a"], "labels": [null]})")), "no word has a label");
  has(refused(with(R"({"words": ["a"], "labels": [[1]]})")), "an entry of 'labels' must be a text");
  has(refused(with(R"({"words": ["the", "\u200b"], "labels": ["O", "O"]})")), "begins in word 2");
  has(refused(with(R"({"words": ["a"], "labels": ["other"]})") + " data.labels=[O,animal]"),
      "the label 'other' is none of data.labels");
  has(refused("model.from=" + reference("classification/llama")),
      "only encoders tell the classes of tokens");
  has(refused("model.from=" + pictures + "vit"), "encoder takes images");
  // A head for rows is not one for tokens.
  has(equivalence::succeed("train " + run + " --dry-run model.from=" + reference("families/bert")),
      "3 classes by a new head");
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
      "only train.objective=classification and token_classification have it");
  has(refused("model.from=" + pictures + "vit"), "only texts have it, and the model takes images");
  has(refused("model.from=" + reference("families/granite")), "no class of the family");
  has(refused("model.from=" + reference("exported/gpt2.pt2")), "no logits among its outputs");
  has(refused("model.from=" + reference("classification/bert.pt2") +
              " data.labels=[LABEL_0,LABEL_1,LABEL_2,LABEL_3]"),
      "expected 3 labels, got 4");
}
