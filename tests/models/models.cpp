// Families of models as plugins: their keys in a config, what is refused, and what
// `tessera plugin check` finds.
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

using tessera::testing::small_model;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

const std::string models = TESSERA_MODELS;
const std::string no_others = "XDG_DATA_HOME=/nowhere TESSERA_PLUGIN_PATH= ";

/// A dry run of this [model] on a small text.
Result dry_run(const std::string& model, const std::string& more = "") {
  const Folder folder;
  folder.write("text.txt", std::string(4000, 'a'));
  folder.write("run.toml", "[model]\n" + model +
                               "\n[data]\ntext = [\"text.txt\"]\nseq_len = 16\n[train]\nbatch = 2\n"
                               "[plugins]\npaths = [\"" +
                               models + "\"]\n");
  return run_program(
      "train '" + (folder.path() / "run.toml").string() + "' --dry-run checkpoint.folder= " + more,
      no_others);
}

void refused(const Result& result, const std::string& part) {
  CHECK(result.code == 2);
  has(result.error, part);
}

Result check(const std::string& name) {
  return run_program("plugin check '" + models + "/" + name + ".so'", no_others);
}

}  // namespace

TEST_CASE("a family from a plugin that the config names has its own keys") {
  const Result good = dry_run("family = \"Chain\"\ndim = 24\nlayers = 3\nheads = 2");
  INFO(good.error);
  CHECK(good.code == 0);
  // Two embeddings of 256, three blocks of 12 * 24 * 24 + 48, a norm.
  has(good.out, "Chain: 33.2 k parameters, dim 24, 3 layers, vocabulary 256");

  refused(dry_run("family = \"Chain\"\ndimm = 24"),
          "run.toml:3: model.dimm: unknown key; did you mean 'model.dim'?");
  refused(dry_run("family = \"Chain\"\nkv_heads = 2"), "run.toml:3: model.kv_heads: unknown key");
  refused(dry_run("family = \"Chain\"\ndim = 0"),
          "run.toml:3: model.dim: expected an integer at least 1");
  refused(dry_run("family = \"Chain\"\ndim = 24\nheads = 5"),
          "run.toml:4: model.heads: dim / heads must be an even whole number");
  refused(dry_run("", "model.family=Chain model.dim=24.5"), "model.dim: expected an integer");
}

TEST_CASE("a family that there is not is refused with the nearest name, in any case") {
  refused(dry_run("family = \"Chian\""),
          "run.toml:2: model.family: there is no family of models 'Chian'");
  refused(dry_run("family = \"Chian\""), "did you mean 'Chain'?");
  refused(dry_run("family = \"\""), "there is no family of models ''");
  refused(dry_run("family = 3"), "model.family: expected a text");
  // What is not the family's fault is reported too, and its keys are not.
  const Result both = dry_run("family = \"Chian\"\nlink = 3", "train.stepz=3");
  refused(both, "train.stepz: unknown key");
  CHECK(both.error.find("model.link") == std::string::npos);
}

TEST_CASE("a checkpoint of a family from a plugin needs the plugin, and says so") {
  const Folder folder;
  folder.write("text.txt", std::string(4000, 'a'));
  const std::string out = (folder.path() / "out").string();
  const std::string named = " --plugin '" + models + "/Chain.so'";
  folder.write("run.toml",
               small_model({.family = "Chain", .dim = 16, .layers = 1, .heads = 2}) +
                   "[data]\ntext = [\"text.txt\"]\nseq_len = 16\n[train]\nsteps = 1\n"
                   "batch = 2\n[log]\nmetrics = \"\"\n[checkpoint]\nfolder = \"out\"\n");
  const Result trained =
      run_program("train '" + (folder.path() / "run.toml").string() + "'" + named, no_others);
  INFO(trained.error);
  REQUIRE(trained.code == 0);
  const std::string saved = "'" + out + "/step-00000001'";
  const std::vector<std::string> commands = {
      "generate " + saved + " --prompt a --tokens 3", "checkpoint info " + saved,
      "checkpoint export " + saved + " --to '" + out + "/exported'"};
  for (const std::string& command : commands) {
    INFO(command);
    refused(run_program(command, no_others), "model_type \"Chain\" is no family of models");
    CHECK(run_program(command + named, no_others).code == 0);
  }
  // It does not say how its layers are split: ranks can have copies of it.
  const std::string ranks = commands[0] + named + " --ranks 2";
  refused(run_program(ranks, no_others),
          "2 ranks for a copy of the model: the family 'Chain' does not say how its layers are "
          "split; use one rank for each copy");
  CHECK(run_program(ranks + " --split 1", no_others).code == 0);
  has(trainer_test::read_file(out + "/exported/config.json"), "\"model_type\": \"Chain\"");
  has(run_program("keys" + named, no_others).out,
      "- `model.layers` (integer, at least 1 and at most 10000; default `4`): Number of blocks.");
}

TEST_CASE("a model whose layers take no cache writes the text of one that has it, and says so") {
  const Folder folder;
  folder.write("text.txt", std::string(4000, 'a'));
  const auto generated = [&](const std::string& family) {
    const std::string config = folder.write(
        family + ".toml", "[model]\nfamily = \"" + family +
                              "\"\ndim = 16\nlayers = 2\nheads = 2\n[data]\ntext = "
                              "[\"text.txt\"]\nseq_len = 16\n[train]\nsteps = 1\nbatch = 2\n"
                              "[log]\nmetrics = \"\"\n[checkpoint]\nfolder = \"" +
                              family + "\"\n");
    const std::string named = " --plugin '" + models + "/" + family + ".so'";
    REQUIRE(run_program("train '" + config + "'" + named, no_others).code == 0);
    const std::string checkpoint = (folder.path() / family / "step-00000001").string();
    return run_program("generate '" + checkpoint + "' --prompt abcd --tokens 20 --seed 3" + named,
                       no_others);
  };
  const Result cached = generated("Chain");
  const Result slow = generated("Uncached");
  CHECK(cached.code == 0);
  CHECK(slow.code == 0);
  CHECK(slow.out == cached.out);
  CHECK(cached.error.find("no cache") == std::string::npos);
  has(slow.error, "note: no cache, each token computes the whole text again: ");
  has(slow.error, "its layers keep no keys");
  has(check("Uncached").out, "model Uncached: 6 of 6 checks passed\n");
}

TEST_CASE("info lists the keys of a family") {
  const Result info = run_program("plugin info '" + models + "/Chain.so'", no_others);
  CHECK(info.code == 0);
  has(info.out, "Keys of model Chain\n");
  has(info.out, "model.layers  Number of blocks.\n");
}

TEST_CASE("check holds a family to its promises") {
  const Result good = check("Chain");
  INFO(good.out);
  CHECK(good.code == 0);
  has(good.out, "model Chain: 6 of 6 checks passed\n");
  const std::vector<std::pair<const char*, const char*>> faults = {
      {"Miscounted", "failed: its sizes describe the model that it builds: parameters() is "},
      {"Detached",
       "failed: the loss is finite and its gradient is that of differences: parameter '"},
      {"Forgetful", "failed: a cache changes no logit: logits with a cache differ"},
      {"Misread",
       "failed: a folder in Hugging Face's format comes back: config.json: num_attention_heads: "
       "not understood"}};
  for (const auto& [name, part] : faults) {
    const Result result = check(name);
    CHECK(result.code == 2);
    has(result.out, part);
  }
  // GPT-2 whose blocks are not told of documents; another plugin of its name is shipped.
  const Result leaking = run_program("plugin check '" TESSERA_LEAKING "'", no_others);
  CHECK(leaking.code == 2);
  has(leaking.out,
      "failed: documents of a row are computed alone, where it takes them: logits of documents");
}
