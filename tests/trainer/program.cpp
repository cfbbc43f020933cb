// The program as a user meets it: exit codes, and where its words go.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "support.hpp"

using trainer_test::Folder;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

Result run(const std::string& arguments) { return run_program(arguments); }

void is_input_error(const std::string& arguments, const std::string& part) {
  const Result result = run(arguments);
  INFO(arguments << ": " << result.error);
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(result.error.starts_with("error: "));
  CHECK(result.error.find("error: ", 1) == std::string::npos);
  CHECK(result.error.find(part) != std::string::npos);
  CHECK(result.error.find('\x1b') == std::string::npos);
}

}  // namespace

TEST_CASE("every command has help, and the program its version") {
  for (const char* arguments :
       {"--help", "train --help", "doctor --help", "keys --help", "ops --help", "plugin --help"}) {
    const Result result = run(arguments);
    INFO(arguments);
    CHECK(result.code == 0);
    CHECK(result.out.find("Usage:") != std::string::npos);
    CHECK(result.error.empty());
  }
  CHECK(run("--version").out.starts_with("tessera 0."));
  // The options of all commands: a value as a user writes it, not as the program keeps it.
  const std::string manual = run("manual").out;
  CHECK(manual.find("max\\-file\\-size") != std::string::npos);
  for (const char* const inner : {"BOOLEAN", "->", "(=1"}) {
    INFO(inner);
    CHECK(manual.find(inner) == std::string::npos);
  }
}

TEST_CASE("wrong arguments are one error on stderr and exit code 2") {
  is_input_error("", "subcommand");
  is_input_error("trian x.toml", "trian: unknown command; did you mean 'train'?");
  is_input_error("train", "CONFIG");
  is_input_error("train --fast x.toml --dry-run", "--fast");
  is_input_error("train /nowhere/x.toml --dry-run", "/nowhere/x.toml: the config cannot be read");
}

TEST_CASE("ops lists the operators, and one with arguments, effects and layouts") {
  const Result all = run("ops");
  CHECK(all.code == 0);
  CHECK(all.out.find("softmax(x; dim: int)") != std::string::npos);
  CHECK(all.out.find("writes parameters; writes exp_avgs; writes exp_avg_sqs") !=
        std::string::npos);
  const Result one = run("ops softmax --arguments dim=1");
  INFO(one.out << one.error);
  CHECK(one.code == 0);
  CHECK(one.out.find("  dim: int, decides shapes or layouts\n") != std::string::npos);
  CHECK(one.out.find("propagates with dim=1\n") != std::string::npos);
  CHECK(one.out.find("    Shard(0) -> Shard(0)\n") != std::string::npos);
  CHECK(one.out.find("Shard(1) -> ") == std::string::npos);
  CHECK(run("ops add_").out.find("writes a; views a") != std::string::npos);
  CHECK(run("ops all_reduce").out.find("communicates (all_reduce)") != std::string::npos);
  CHECK(run("ops dropout").out.find("draws random numbers") != std::string::npos);
  is_input_error("ops sotfmax", "did you mean 'softmax'?");
  is_input_error("ops softmax --arguments dim=x", "softmax: a value of type int is expected");
  is_input_error("ops softmax --arguments keepdim=true", "softmax: there is no argument 'keepdim'");
  is_input_error("ops relu --arguments dim=1", "relu: it has no arguments (got 'dim=1')");
  is_input_error("ops --arguments dim=1", "name one");
}

TEST_CASE("a dry run prints the plan and writes nothing") {
  const Folder folder;
  folder.write("a.txt", std::string(5000, 'a'));
  const std::string config = folder.write("run.toml", R"([data]
text = ["a.txt"]
seq_len = 16
[train]
batch = 4
[mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["."]
)");
  const Result result = run("train " + config + " --dry-run train.steps=7 model.dim=64");
  INFO(result.error);
  CHECK(result.code == 0);
  CHECK(result.error.empty());
  CHECK(result.out.find("shard 2 = 2 ranks") != std::string::npos);
  CHECK(result.out.find("dim 64") != std::string::npos);
  CHECK(result.out.find("7 of 64 tokens") != std::string::npos);
  CHECK(result.out.find("FLOP per step; per rank ") != std::string::npos);
  CHECK(result.out.find("linear_grad_weight") == std::string::npos);
  const Result tokens =
      run("train " + config +
          " --dry-run train.steps=70 optimizer.schedule_unit=tokens optimizer.schedule=wsd "
          "optimizer.warmup=160 optimizer.cooldown=1000 optimizer.schedule_end=4000");
  INFO(tokens.error);
  CHECK(
      tokens.out.find("wsd after 160 tokens (2.5 steps) of warm-up, down in the last 1.00 k tokens "
                      "(15.62 steps), ends after 4.00 k tokens (62.5 steps)") != std::string::npos);
  const Result account = run("train " + config + " --account train.steps=7 model.dim=64");
  INFO(account.error << account.out);
  CHECK(account.code == 0);
  CHECK(account.out.starts_with(result.out));
  CHECK(account.out.find("linear_grad_weight ") != std::string::npos);
  CHECK(account.out.find("all_gather on 'shard'") != std::string::npos);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::recursive_directory_iterator(folder.path())) {
    ++entries;
  }
  CHECK(entries == 2);
  is_input_error("train " + config + " --dry-run train.steps=0", "train.steps: expected");
  is_input_error("train " + config + " --dry-run data.seq_len=5000", "data: too short");
  is_input_error("train " + config + " --dry-run --plugin /nowhere.so", "/nowhere.so");
  is_input_error("train " + config + " --dry-run model.from=hf", "there is no such folder");
}

TEST_CASE("layout draws what the ranks hold and plans changes") {
  const Folder folder;
  const std::string svg = (folder.path() / "grid.svg").string();
  const Result result =
      run("layout '[Shard(0), Shard(-1)]' --mesh shard=2,tensor=3 --shape 4x6 "
          "--to '[Replicate, Shard(1)]' --svg " +
          svg);
  INFO(result.error);
  CHECK(result.code == 0);
  CHECK(result.out.find("rank 5 (shard 1, tensor 2): [2:4, 4:6]\n") != std::string::npos);
  CHECK(result.out.find("1. all_gather on axis 'shard': Shard(0) -> Replicate") !=
        std::string::npos);
  CHECK(std::filesystem::file_size(svg) > 500);
}

TEST_CASE("a layout that cannot be is one error") {
  is_input_error("layout '[Shard(0)]' --shape 4", "--mesh is required");
  is_input_error("layout '[Shard(0)]' --mesh 2x2 --shape 4",
                 "layout: 1 placements for 2 axes (got [Shard(0)], mesh(a=2, b=2))");
  is_input_error("layout '[Shard(1)]' --mesh 2 --shape 4",
                 "Shard(1) for a tensor of 1 dims (expected a dim from -1 to 0)");
  is_input_error("layout '[Shrad(0)]' --mesh 2 --shape 4", "Shrad");
  is_input_error("layout '[Shard(0)]' --mesh 2y --shape 4",
                 "layout: --mesh has '2y' (expected a number, as in 8x6)");
  is_input_error("layout '[Shard(0)]' --mesh a=2,b --shape 4", "cannot be read");
  is_input_error("layout '[Shard(0)]' --mesh 0 --shape 4", "has size 0");
  is_input_error("layout '[Shard(0)]' --mesh 4096 --shape 4", "expected at most 1024");
  is_input_error("layout '[Shard(0)]' --mesh 2 --shape 4x-1", "'-1'");
  is_input_error("layout '[Shard(0)]' --mesh 2 --shape 4 --svg /nowhere/x.svg",
                 "cannot write /nowhere/x.svg");
}

TEST_CASE("tensors are shown, compared and converted whatever they are stored as") {
  const Folder folder;
  const std::string stored = TESSERA_SOURCE_FOLDER "/tests/reference/data/torch/";
  const std::string to = (folder.path() / "c").string();
  const Result shown = run("checkpoint info " + stored + "two --json");
  CHECK(shown.code == 0);
  const auto json = nlohmann::json::parse(shown.out);
  CHECK(json["format"] == "torch");
  CHECK(json["scalars"]["step"] == 3);
  CHECK(json["tensors"]["rows"] == nlohmann::json({{"dtype", "f32"}, {"shape", {5, 4}}}));
  const Result converted =
      run("checkpoint convert " + stored + "one --to " + to + " --format tessera");
  CHECK(converted.code == 0);
  CHECK(converted.out.find("15 tensors and 5 scalars written") != std::string::npos);
  CHECK(converted.out.find("left out, as they are neither tensors, numbers nor texts: nothing, "
                           "betas") != std::string::npos);
  CHECK(run("checkpoint verify " + to).code == 0);
  CHECK(run("checkpoint diff " + to + " " + stored + "one").code == 0);
  const Result differs = run("checkpoint diff " + to + " " + stored + "two");
  CHECK(differs.code == 1);
  CHECK(differs.out.find("only in the second") != std::string::npos);
  CHECK(differs.out.find("19 tensors differ") != std::string::npos);
  CHECK(nlohmann::json::parse(run("checkpoint diff --json " + to + " " + stored + "two").out)
            .size() == 19);
  is_input_error("checkpoint convert " + to + " --to " + to + " --format torch", "not empty");
  is_input_error("checkpoint info " + folder.path().string(),
                 "it is not a checkpoint, and not a model");
}

TEST_CASE("a format of a plugin is shown, compared and converted like the built-in ones") {
  const Folder folder;
  const std::string stored = TESSERA_SOURCE_FOLDER "/tests/reference/data/torch/one";
  const std::string plugin = " --plugin " TESSERA_FORMATS "/Flat.so";
  const std::string flat = (folder.path() / "flat").string();
  const std::string back = (folder.path() / "back").string();
  const Result converted =
      run("checkpoint convert " + stored + " --to " + flat + " --format Flat" + plugin);
  INFO(converted.error);
  CHECK(converted.code == 0);
  CHECK(converted.out.find("15 tensors and 0 scalars written") != std::string::npos);
  const auto json = nlohmann::json::parse(run("checkpoint info " + flat + " --json" + plugin).out);
  CHECK(json["format"] == "Flat");
  CHECK(json["tensors"].size() == 15);
  CHECK(run("checkpoint diff " + flat + " " + stored + plugin).code == 0);
  CHECK(run("checkpoint convert " + flat + " --to " + back + " --format torch" + plugin).code == 0);
  CHECK(run("checkpoint diff " + back + " " + stored).code == 0);
  is_input_error("checkpoint info " + flat, "it is not a checkpoint, and not a model");
  is_input_error(
      "checkpoint convert " + stored + " --to " + flat + "2 --format Falt" + plugin,
      "there is no checkpoint format 'Falt' (there are tessera, torch, safetensors, gguf, pt2 and "
      "Flat); did you mean 'Flat'?");
}

TEST_CASE("doctor tells what the machine has") {
  const Result result = run("doctor");
  CHECK(result.code == 0);
  CHECK(result.out.find("Limits") != std::string::npos);
  // A build has the plugin for GPUs, or a reason.
  CHECK((result.out.find("cuda (by cuda.so)") != std::string::npos) !=
        (result.out.find("GPUs of NVIDIA are not supported by this build: ") != std::string::npos));
  CHECK(result.out.find("/lib/tessera/plugins") != std::string::npos);
}
