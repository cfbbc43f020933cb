
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.mesh;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.app.config;
import tessera.runs;
import tessera.hub;

namespace hub = tessera::hub;
namespace runs = tessera::runs;
using namespace tessera::app;
using trainer_test::has;
using trainer_test::input_error;

namespace {

using Words = std::vector<std::string>;

const std::string minimal = "[data]\ntext = [\"a.txt\"]\n";

runs::RunSpec parse(const std::string& text, const Words& overrides = {}) {
  return parse_config(text, "folder/run.toml", overrides);
}

std::string config_error(const std::string& text, const Words& overrides = {}) {
  return input_error([&] { parse(text, overrides); });
}

}  // namespace

TEST_CASE("a config without optional keys has the documented defaults") {
  const runs::RunSpec c = parse(minimal);
  CHECK(c.train.steps == 300);
  CHECK(c.optimizer.name == "adamw");
  CHECK(c.ranks() == 1);
  CHECK(c.parallel.empty());
  CHECK(c.checkpoint.resume == "auto");
}

TEST_CASE("every section is read") {
  const runs::RunSpec c = parse(minimal + R"(
[model]
dim = 96
norm_eps = 1
[train]
activation_checkpointing = true
[mesh]
axes = ["shard", "tensor"]
shape = [2, 3]
[[parallel]]
style = "FSDP"
axis = "shard"
on = [".", "model.layers.*"]
options = { reshard_after_forward = true, sizes = [1, 2.5], inner = { a = "b" } }
)");
  CHECK(std::get<std::int64_t>(c.model.sizes.at("dim")) == 96);
  CHECK(std::get<double>(c.model.sizes.at("norm_eps")) == 1.0);
  CHECK(c.train.activation_checkpointing);
  CHECK(c.ranks() == 6);
  REQUIRE(c.parallel.size() == 1);
  CHECK(c.parallel[0].on == Words{".", "model.layers.*"});
  CHECK(c.parallel[0].where == "folder/run.toml:12");
  CHECK(nlohmann::json::parse(c.parallel[0].options.text) ==
        nlohmann::json(
            {{"reshard_after_forward", true}, {"sizes", {1, 2.5}}, {"inner", {{"a", "b"}}}}));
  CHECK(c.place("model.dim") == "folder/run.toml:5: model.dim");
  CHECK(c.place("model.heads") == "folder/run.toml:4: model.heads");  // its section
  CHECK(c.place("parallel[0].axis") == "folder/run.toml:14: parallel[0].axis");
  CHECK(c.place("log.every") == "folder/run.toml: log.every");  // neither is there
}

TEST_CASE("paths are relative to the config's folder") {
  const runs::RunSpec c = parse("[data]\ntext = [\"a.txt\", \"/b/*.txt\", \"../c\"]\n",
                                {"checkpoint.resume=old/step-5", "log.metrics="});
  CHECK(c.data.text == Words{"folder/a.txt", "/b/*.txt", "c"});
  CHECK(c.checkpoint.folder == "folder/checkpoints");
  CHECK(c.checkpoint.resume == "folder/old/step-5");
  CHECK(c.log.metrics.empty());
  CHECK(parse(minimal, {"checkpoint.resume=never"}).checkpoint.resume == "never");
}

TEST_CASE("overrides replace any key, in the order of the command line") {
  const std::string text = minimal + R"([[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["a"]
)";
  const runs::RunSpec c = parse(
      text, {"train.steps=50", "train.steps=60", "mesh.shape=[2,2]", "mesh.axes=[shard, tensor]",
             "optimizer.lr=1e-4", "model.tie_embeddings=true", "data.text=[\"x y.txt\",z.txt]",
             "parallel[0].options.output=Shard(1)", "parallel[0].on[0]=b", "parallel[1].style=FSDP",
             "parallel[1].axis=shard", "parallel[1].on=[model.layers.*, .]",
             "parallel[1].options={reshard_after_forward=false,dtype=bf16}"});
  CHECK(c.train.steps == 60);
  CHECK(c.mesh.shape == std::vector<std::int64_t>{2, 2});
  CHECK(c.mesh.axes == Words{"shard", "tensor"});
  CHECK(c.optimizer.lr == 1e-4);
  CHECK(std::get<bool>(c.model.sizes.at("tie_embeddings")));
  CHECK(c.data.text == Words{"folder/x y.txt", "folder/z.txt"});
  REQUIRE(c.parallel.size() == 2);
  CHECK(nlohmann::json::parse(c.parallel[0].options.text) ==
        nlohmann::json({{"output", "Shard(1)"}}));
  CHECK(c.parallel[0].on == Words{"b"});
  CHECK(c.parallel[1].on == Words{"model.layers.*", "."});
  CHECK(nlohmann::json::parse(c.parallel[1].options.text) ==
        nlohmann::json({{"reshard_after_forward", false}, {"dtype", "bf16"}}));
  CHECK(parse(text, {"parallel=[]"}).parallel.empty());
}

TEST_CASE("a wrong override is named as it was written") {
  has(config_error(minimal, {"train.steps"}), "command line, train.steps: expected key=value");
  has(config_error(minimal, {"train..steps=3"}), "expected key=value");
  has(config_error(minimal, {"[0].a=3"}), "expected key=value");
  has(config_error(minimal, {"train.steps=many"}),
      "command line, train.steps=many: train.steps: expected an integer");
  has(config_error(minimal, {"train.stepz=4"}),
      "command line, train.stepz=4: train.stepz: unknown key; did you mean 'train.steps'?");
  has(config_error(minimal, {"parallel[2].axis=x"}),
      "parallel has no entries yet: parallel[0] adds one");
  has(config_error(minimal, {"train.steps.more=1", "train=3"}), "train: expected a section");
  has(config_error(minimal + "[train]\nsteps = 3\n", {"train.steps.more=1"}),
      "train.steps is a single value");
}

TEST_CASE("an unknown key is an error with its line and the nearest right name") {
  has(config_error(minimal + "[train]\nstep = 3\n"),
      "folder/run.toml:4: train.step: unknown key; did you mean 'train.steps'?");
  has(config_error(minimal + "[train]\nlr = 3\n"), "did you mean 'optimizer.lr'?");
  has(config_error(minimal + "[trian]\n"), ":3: trian: unknown section; did you mean 'train'?");
  has(config_error("steps = 3\n" + minimal), ":1: steps: unknown key; did you mean 'train.steps'?");
  has(config_error(minimal + "[[parallel]]\nstyle=\"FSDP\"\naxis=\"a\"\non=[\".\"]\noption={}\n"),
      ":7: parallel[0].option: unknown key; did you mean 'parallel[0].options'?");
}

TEST_CASE("wrong types and impossible values are errors with their line") {
  struct Case {
    const char* line;
    const char* error;
  };
  const Case cases[] = {
      {"train.steps = \"3\"",
       ":3: train.steps: expected an integer at least 1, got the text \"3\""},
      {"train.steps = 3.0", "expected an integer at least 1, got the number 3"},
      {"train.steps = -5", "got the integer -5"},
      {"train.steps = 1979-05-27", "got a date or time"},
      {"model.tie_embeddings = 1", "expected true or false, got the integer 1"},
      {"optimizer.lr = nan", "optimizer.lr: expected a finite number more than 0"},
      {"optimizer.lr = inf", "got the number inf"},
      {"optimizer.lr = 0", "got the integer 0"},
      {"optimizer.betas = [0.9, 1.0]",
       "optimizer.betas: unknown key; what the plugin itself reads "
       "is in optimizer.options"},
      {"optimizer.groups = {}", "optimizer.groups: expected a list of tables"},
      {"optimizer.groups = [3]", "optimizer.groups: expected a list of tables"},
      {"optimizer.schedule = \"wsd\"", "last cooldown steps (expected 1 to 300"},
      {"optimizer.cooldown = 3", "only the schedule wsd has it; the schedule is constant"},
      {"optimizer.warmup = 301",
       "optimizer.warmup: is longer than the run (expected at most 300 steps, got 301)"},
      {"optimizer.schedule_unit = \"token\"", "optimizer.schedule_unit: expected"},
      {"optimizer.schedule_end = 3",
       "optimizer.schedule_end: the schedule constant has no end; remove one of the two"},
      {"data.validation = 1.0", "data.validation: expected a finite number at least 0 and less"},
      {"data.seq_len = 0", "data.seq_len: expected an integer at least 1"},
      {"data.tokens = [\"x.npy\"]", "data.text is set too"},
      {"model.vocab = 300", "the tokenizer determines this"},
      {"model.heads = 7", "model.heads: must divide model.dim (dim 256, 7 heads)"},
      {"model.kv_heads = 3", "model.kv_heads: must divide model.heads"},
      {"model.head_dim = 5", "must be even"},
      {"model.dropout = 1.0", "model.dropout"},
      {"train.micro_batch = 17", "is larger than train.batch"},
      {"train.precision = \"f16\"", "set train.loss_scaling=dynamic"},
      {"train.parameters = \"bf16\"", "do not compute in f32; set train.precision=bf16"},
      {"train.parameters = \"f16\"", "train.parameters"},
      {"graph.across_steps = true", "only captured steps can leave their updates"},
      {"graph.verify = 10", "only captured steps can be verified"},
      {"graph.capture = true\ngraph.verify = 10\ngraph.mode = \"replicate\"",
       "a step that a mode places cannot be taken as it is written"},
      {"graph.memory_budget = \"4GiB\"", "only captured steps have a budget of memory"},
      {"graph.capture = true\ngraph.offload = \"/tmp\"",
       "only steps with a budget of memory keep values elsewhere; set graph.memory_budget"},
      {"graph.capture = true\ngraph.memory_budget = \"4GiB\"\ngraph.offload = \"/tmp\"\n"
       "train.device = \"other\"",
       "values of 'other' cannot be kept in a file yet"},
      {"graph.executor = \"compiled\"", "only captured steps have an executor"},
      {"graph.mode = \"replicate\"", "only captured steps are placed by a mode; set graph.capture"},
      {"graph.capture = true\ngraph.mode = \"shard\"",
       "graph.mode: there is no mode 'shard' (expected expand, replicate"},
      {"graph = {capture = true, mode = \"expand\"}\n"
       "parallel = [{style=\"S\", axis=\"a\", on=[\".\"]}]",
       "the mode 'expand' places the whole step, and so would S"},
      {"graph.capture = true\ngraph.dump = \"x\"\ngraph.program = \"x\"",
       "a file and a folder cannot have one name"},
      {"graph.dump = \"dump\"", "only captured steps have passes; set graph.capture=true"},
      {"graph.program = \"step.txt\"", "only captured steps have a program"},
      {"graph.capture = true\ngraph.memory_budget = \"4 GB\"", "'4 GB' is no amount of memory"},
      {"graph.capture = true\ngraph.memory_budget = \"-1GiB\"", "no amount of memory"},
      {"graph.capture = true\ngraph.memory_budget = \"1e9TiB\"", "no amount of memory"},
      {"graph.passes = [\"ded\"]", "graph.passes: "},
      {"graph.passes = [\"recompute\"]", "'recompute' needs 'lifetimes' before it"},
      {"train.seed = -1", "train.seed: expected an integer at least 0"},
      {"mesh.axes = [\"a\"]", "needs one extent for each of mesh.axes (1 axes, 0 extents)"},
      {"mesh = {axes = [\"a\", \"a\"], shape = [1, 2]}", "the axis 'a' is named twice"},
      {"mesh = {axes = [\"a\"], shape = [0]}", "mesh.shape[0]: expected an integer at least 1"},
      {"mesh = {axes = [\"a\", \"b\"], shape = [4096, 4096]}", "at most 65536 ranks"},
      {"mesh = {axes = [\"\"], shape = [1]}", "mesh.axes[0]: expected a text that is not empty"},
      {"mesh = {axes = [\"a\"], shape = [2], latency_us = [1.5]}",
       "need one number each for each of mesh.axes (1 axes, 1 and 0 numbers)"},
      {"mesh = {axes = [\"a\"], shape = [2], latency_us = [1, 2], bandwidth_gb = [1, 2]}",
       "(1 axes, 2 and 2 numbers)"},
      {"parallel = 3", "parallel: expected a list of tables"},
      {"parallel = [{axis=\"a\", on=[]}]", "parallel[0].style: must be given"},
      {"parallel = [{style=\"S\", axis=\"a\", on=[\".\"]}]", "it has no axes: set mesh.axes"},
      {"parallel = [{style=\"S\", axis=\"a\", on=[\"{a\"]}]", "braces do not pair"},
      {"parallel = [{style=\"S\", axis=\"a\", on=[]}]", "parallel[0].on: is empty"},
      {"parallel = [{style=\"S\", axis=\"a\", on=[\".\"], options = {x = nan}}]",
       "parallel[0].options: expected a table of texts"},
      {"checkpoint = {folder = \"\", every = 5}", "checkpoint.folder is empty"},
      {"model = {from = \"f\", dim = 3}", "model.dim: the folder of model.from determines this"},
  };
  for (const Case& c : cases) {
    // Dotted keys at the top of the file: every line is the third.
    has(config_error("data.text = [\n\"a.txt\"]\n" + std::string(c.line) + "\n"), c.error);
  }
  has(config_error(""), "data.text: there is nothing to train on");
  has(config_error("data.tokens = [\"a.npy\"]"), "token ids need model.vocab");
  has(config_error(minimal + "[mesh]\naxes=[\"shard\"]\nshape=[2]\n[[parallel]]\nstyle=\"FSDP\"\n"
                             "axis=\"shart\"\non=[\".\"]\n"),
      ":8: parallel[0].axis: the mesh has no axis 'shart' (it has shard); did you mean 'shard'?");
  has(config_error("[data\n"), "folder/run.toml:1:");
  has(config_error("[data]\ntext=[]\ntext=[]\n"), "folder/run.toml:3:");
}

TEST_CASE("a value that is nearly right is shown as it should be written") {
  struct Case {
    const char* line;
    const char* advice;  // the end of the error
  };
  const Case cases[] = {
      {"train.steps = 1e3", "got the number 1000; write 1000"},
      {"train.steps = 1000.5", "got the number 1000.5"},
      {"train.steps = -1e3", "got the number -1000"},  // still too small
      {"train.steps = 1e300", "got the number 1e+300"},
      {"train.steps = \"1000\"", "got the text \"1000\"; write 1000"},
      {"train.steps = \"many\"", "got the text \"many\""},
      {"train.steps = \"0\"", "got the text \"0\""},
      {"optimizer.lr = \"1e-3\"", "got the text \"1e-3\"; write 1e-3"},
      {"optimizer.lr = \"nan\"", "got the text \"nan\""},
      {"graph.capture = \"true\"", "got the text \"true\"; write true"},
      {"train.clip_norm_type = 2", "got the integer 2; write \"2\""},
      {"data.order = 3", "\"shuffled\" or \"sequential\", got the integer 3"},
      {"mesh.shape = [2.0]", "got the number 2; write 2"},
      {"mesh.shape = 2", "expected a list, got the integer 2; write [...] around it"},
      {"mesh.shape = \"a\"", "expected a list, got the text \"a\""},
      {"mesh.shape = [\"2\"]", "got the text \"2\"; write 2"},
  };
  for (const Case& c : cases) {
    INFO(c.line);
    const std::string error =
        config_error("data.text = [\"a.txt\"]\n" + std::string(c.line) + "\n");
    INFO(error);
    CHECK(error.ends_with(c.advice));
  }
}

TEST_CASE("all problems are reported at once, in the order of their lines") {
  const std::string error =
      config_error(minimal + "[train]\nsteps = -1\nbatsh = 3\n[log]\nevery = 0\n");
  has(error, "3 problems");
  const auto steps = error.find(":4: train.steps");
  const auto batch = error.find(":5: train.batsh");
  const auto every = error.find(":7: log.every");
  CHECK(steps < batch);
  CHECK(batch < every);
  CHECK(every != std::string::npos);
}

TEST_CASE("a config that cannot be read is one clear error") {
  has(input_error([] { load_config("/nowhere/run.toml"); }), "/nowhere/run.toml: the config");
  has(input_error([] { load_config("/"); }), "is a folder");
}

TEST_CASE("the record of a config holds every key") {
  const auto json = nlohmann::json::parse(to_json(parse(
      minimal, {"mesh.axes=[a]", "mesh.shape=[2]", "parallel[0].style=S", "parallel[0].axis=a",
                "parallel[0].on=[.]", "parallel[0].options.k=1", "sinks[0].sink=S"})));
  for (const runs::Key& key : runs::config_keys()) {
    INFO(key.path);
    const auto& section = json.at(key.section());
    CHECK((key.in_list() ? section.at(0) : section).contains(key.leaf()));
  }
  CHECK(json["parallel"][0]["options"]["k"] == 1);
  CHECK(json["optimizer"]["lr"] == 3e-4);
}

TEST_CASE("docs/config.md and the program know the same keys") {
  const std::string page =
      trainer_test::read_file(std::string(TESSERA_SOURCE_FOLDER) + "/docs/config.md");
  INFO("`tessera keys` prints what the page must hold");
  CHECK(page.find(config_reference()) != std::string::npos);
}

TEST_CASE("every config of configs/ is right") {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TESSERA_SOURCE_FOLDER) + "/configs")) {
    if (entry.path().extension() == ".toml") {
      INFO(entry.path());
      CHECK(input_error([&] { load_config(entry.path()); }).empty());
      ++count;
    }
  }
  CHECK(count >= 9);
}

TEST_CASE("a model's sizes follow from the config") {
  const runs::RunSpec config =
      parse(minimal, {"model.dim=128", "model.layers=2", "model.heads=4", "model.kv_heads=2"});
  const auto bytes = runs::open_run_tokenizer(config);
  const hub::ModelShape shape = runs::model_shape(config, bytes);
  CHECK(shape.vocab == 256);
  CHECK(std::get<std::int64_t>(shape.values.at("head_dim")) == 32);
  CHECK(std::get<std::int64_t>(shape.values.at("ffn_dim")) == 384);
  // Two embeddings, the last norm; a layer: q and o, k and v, three of the feed-forward, two norms.
  CHECK(shape.parameters() ==
        2 * 256 * 128 + 128 + 2 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384 + 2 * 128));
  CHECK(std::get<std::int64_t>(runs::model_shape(parse(minimal), bytes).values.at("kv_heads")) ==
        8);
}

TEST_CASE("the learning rate warms up and then follows its schedule") {
  runs::RunSpec config;
  runs::OptimizerConfig& o = config.optimizer;
  o.lr = 2.0;
  o.warmup = 4;
  o.min_lr_ratio = 0.1;
  o.schedule = tessera::optim::ScheduleKind::constant;
  const auto learning_rate = [&](std::int64_t steps, std::int64_t step) {
    config.train.steps = steps;
    return runs::make_schedule(config).at(step);
  };
  CHECK(learning_rate(14, 0) == 0.5);
  CHECK(learning_rate(14, 3) == 2.0);
  CHECK(learning_rate(14, 13) == 2.0);
  o.schedule = tessera::optim::ScheduleKind::cosine;
  CHECK(learning_rate(14, 4) == 2.0);
  CHECK(learning_rate(14, 9) == Approx(0.2 + 1.8 * 0.5));
  CHECK(learning_rate(14, 13) == Approx(0.2 + 0.9 * (1 + std::cos(0.9 * 3.14159265358979))));
  o.schedule = tessera::optim::ScheduleKind::linear;
  CHECK(learning_rate(14, 9) == Approx(0.2 + 1.8 * 0.5));
  CHECK(learning_rate(14, 14) == Approx(0.2));
  o.warmup = 14;
  CHECK(std::isfinite(learning_rate(14, 14)));
}

TEST_CASE("a schedule counts steps or tokens, to the end of the run or to one of its own") {
  const std::string start =
      minimal + "seq_len = 10\n[train]\nsteps = 50\nbatch = 4\n[optimizer]\nlr = 2.0\n";
  const auto at = [&](const std::string& more, std::int64_t done, std::int64_t size) {
    return runs::make_schedule(parse(start + more)).at(done, size);
  };
  const std::string linear = "schedule = \"linear\"\n";
  const std::string tokens = linear + "schedule_unit = \"tokens\"\n";
  CHECK(at(linear, 25, 1) == Approx(1));
  CHECK(at(tokens, 1000, 40) == Approx(1));  // of 50 * 4 * 10
  CHECK(at(linear + "schedule_end = 100\n", 25, 1) == Approx(1.5));
  CHECK(at(linear + "schedule_end = 20\n", 25, 1) == 0);  // before the end of the run
  CHECK(at(tokens + "schedule_end = 8_000\nwarmup = 4000\n", 2000, 40) == Approx(1.02));
  CHECK(at(tokens + "schedule_end = 8_000\nwarmup = 4000\n", 6000, 40) == Approx(1));
  has(config_error(start + tokens + "warmup = 2001\n"),
      "optimizer.warmup: is longer than the run (expected at most 2000 tokens, got 2001)");
  has(config_error(start + tokens + "schedule_end = 300\nwarmup = 301\n"),
      "optimizer.warmup: is longer than the schedule (expected at most 300 tokens, got 301)");
  has(config_error(start + "schedule = \"wsd\"\nschedule_unit = \"tokens\"\nwarmup = 1500\n"
                           "cooldown = 501\n"),
      "optimizer.cooldown: wsd lowers the learning rate in the last cooldown tokens (expected 1 to "
      "500, the tokens between warm-up and end, got 501)");
  // More tokens than 64 bits hold: the end is out of reach.
  CHECK(runs::make_schedule(parse(minimal +
                                  "[train]\nsteps = 1000000000000000\nbatch = 16777216\n"
                                  "[optimizer]\n" +
                                  tokens))
            .end == std::numeric_limits<std::int64_t>::max());
}

TEST_CASE("a config as TOML is read as the same run") {
  // Only configs that open no plugin.
  for (const char* const name : {"one_rank", "fsdp_tensor", "hybrid", "loss_parallel", "lora"}) {
    INFO(name);
    const std::string file = std::string(TESSERA_SOURCE_FOLDER "/configs/") + name + ".toml";
    const runs::RunSpec first =
        load_config(file, Words{"optimizer.groups=[{on=[\"*.bias\"],lr=1e-5}]",
                                "optimizer.options={betas=[0.9,0.99]}"});
    const std::string text = to_toml(first);
    INFO(text);
    // In another folder: paths are absolute.
    const runs::RunSpec again = parse_config(text, "/somewhere/else/run.toml");
    CHECK(to_json(again) == to_json(first));
    CHECK(to_toml(again) == text);
    for (std::size_t i = 0; i < first.parallel.size(); ++i) {
      CHECK(entry_text(again, i) == entry_text(first, i));
    }
  }
}
