// tessera bench compare: what PyTorch's side is given, and what is made of its steps. A script
// takes the place of a Python with torch, which the tests must not need; docs/performance-beside.md
// has what the real one says.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.tensor;
import tessera.checkpoint;

using nlohmann::json;
using trainer_test::Folder;
using trainer_test::has;
using trainer_test::read_file;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

namespace fs = std::filesystem;

const std::string text = "The quick brown fox jumps over the lazy dog. ";

const std::string config = R"(
[model]
dim = 16
layers = 1
heads = 2
ffn_dim = 32
[data]
text = ["text.txt"]
seq_len = 8
validation = 0
order = "sequential"
[train]
batch = 2
steps = 8
[optimizer]
lr = 0.01
warmup = 4
[mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)";

class Compared {
 public:
  Compared() {
    std::string all;
    for (int i = 0; i < 20; ++i) {
      all += text;
    }
    folder_.write("text.txt", all);
    folder_.write("run.toml", config);
    fs::create_directory(folder_.path() / "given");
    write_python(
        R"({"losses": [0, 0, 0, 0, 0], "seconds": [9, 9, 9, 2, 4], "peak_bytes": 1048576})");
  }
  /// A Python whose training ends with these steps.
  void write_python(const std::string& result) {
    folder_.write("python",
                  "#!/bin/sh\nif [ \"$1\" = -c ]; then echo 9.9; exit 0; fi\n"
                  "echo \"$@\" > given/words\nwhile [ $# -gt 1 ]; do shift; done\n"
                  "cp \"$1\"/*.json \"$1\"/*.safetensors \"$1\"/*.py given\n"
                  "echo '" +
                      result + "' > \"$1/torch.json\"\n");
    fs::permissions(folder_.path() / "python", fs::perms::owner_all);
  }
  Result run(const std::string& more, const std::string& python = "./python") const {
    return run_program("bench compare run.toml --python " + python + " " + more,
                       "cd " + folder_.path().string() + " &&");
  }
  fs::path given() const { return folder_.path() / "given"; }
  void write(const std::string& name, const std::string& content) const {
    folder_.write(name, content);
  }

 private:
  Folder folder_;
};

std::vector<double> values_of(const fs::path& file, const std::string& name) {
  return tessera::to_doubles(tessera::SafetensorsFile(file.string()).read(name));
}

}  // namespace

TEST_CASE("a comparison trains both sides on the same and prints the ratio of their steps") {
  const Compared compared;
  const Result result = compared.run("--steps 5 --rounds 1 --json");
  INFO(result.error);
  REQUIRE(result.code == 0);
  const json printed = json::parse(result.out);
  CHECK(printed["pytorch"]["version"] == "9.9");
  CHECK(printed["pytorch"]["step_seconds"] == 3.0);  // the first three do not count
  CHECK(printed["pytorch"]["tokens_per_second"] == Approx(16 / 3.0));
  CHECK(printed["pytorch"]["peak_bytes_of_rank_0"] == 1048576);
  const double here = printed["tessera"]["step_seconds"];
  CHECK(printed["ratio"] == Approx(3 / here));
  CHECK(printed["largest_loss_difference"].get<double>() == Approx(std::log(256)).epsilon(0.1));

  has(read_file(compared.given() / "words"),
      "torch.distributed.run --standalone --nproc-per-node 2");
  const json run = json::parse(read_file(compared.given() / "run.json"));
  CHECK(run["layout"] == "fully_sharded");
  CHECK(run["threads"] == 1);
  CHECK(run["compile"] == false);
  CHECK(run["model"]["ffn_dim"] == 32);
  CHECK(run["model"]["kv_heads"] == 2);
  CHECK(run["optimizer"]["betas"] == json::array({0.9, 0.95}));
  REQUIRE(run["lr"].size() == 5);
  CHECK(run["lr"][0] == Approx(0.0025));  // of a warm-up of four steps, as of the whole run
  CHECK(run["lr"][4] == Approx(0.01));
}

TEST_CASE("a comparison has the learning rates of the first steps of the whole run") {
  const Compared compared;
  REQUIRE(compared.run("optimizer.schedule=cosine optimizer.warmup=0 --steps 5 --rounds 1").code ==
          0);
  const json run = json::parse(read_file(compared.given() / "run.json"));
  CHECK(run["lr"][4] == Approx(0.005));  // half of the run's 8 steps are done
}

TEST_CASE("PyTorch's side gets the rows of the run, and the weights that it begins with") {
  const Compared compared;
  REQUIRE(compared.run("--steps 5 --rounds 1").code == 0);
  const fs::path rows = compared.given() / "rows.safetensors";
  const std::vector<double> inputs = values_of(rows, "inputs");
  const std::vector<double> targets = values_of(rows, "targets");
  REQUIRE(inputs.size() == 5 * 2 * 8);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    CHECK(inputs[i] == static_cast<unsigned char>(text[i % text.size()]));
    CHECK(targets[i] == static_cast<unsigned char>(text[(i + 1) % text.size()]));
  }
  // A run that takes no step of any size saves the weights that it has begun with.
  const Result saved = run_program(
      "train run.toml train.steps=1 optimizer.warmup=0 optimizer.lr=1e-30 checkpoint.folder=saved "
      "log.metrics=",
      "cd " + compared.given().parent_path().string() + " &&");
  REQUIRE(saved.code == 0);
  const Result exported = run_program("checkpoint export saved/step-00000001 --to exported",
                                      "cd " + compared.given().parent_path().string() + " &&");
  REQUIRE(exported.code == 0);
  const fs::path own = compared.given().parent_path() / "exported" / "model.safetensors";
  const tessera::SafetensorsFile weights((compared.given() / "weights.safetensors").string());
  const tessera::SafetensorsFile expected(own.string());
  CHECK(weights.tensors() == expected.tensors());
  for (const auto& [name, info] : expected.tensors()) {
    INFO(name);
    CHECK(tessera::to_doubles(weights.read(name)) == tessera::to_doubles(expected.read(name)));
  }
}

TEST_CASE("a comparison of what PyTorch's side does not compute is refused, with all reasons") {
  const Compared compared;
  const Result result = compared.run(
      "train.precision=bf16 model.dropout=0.1 optimizer.options={amsgrad=true} --steps 5");
  CHECK(result.code == 2);
  has(result.error, "train.precision: only f32");
  has(result.error, "model.dropout: no dropout");
  has(result.error, "optimizer.options: only betas and eps");
  const Result layout = compared.run("parallel=[] mesh.shape=[1] model.family=mixtral --steps 5");
  CHECK(layout.code == 2);
  has(layout.error, "model.family: only Llamas");
  const Result axes = compared.run(
      "mesh.axes=[a,b] mesh.shape=[2,1] "
      "'parallel=[{style=FSDP,axis=a,on=[\".\"]},{style=Replicate,axis=b,on=[\".\"]}]' --steps 5");
  CHECK(axes.code == 2);
  has(axes.error, "one axis with FSDP");
  has(compared.run("--steps 9").error, "at least 9 steps, got 8");
}

TEST_CASE("a Python that is none, or whose training fails, is an error with its text") {
  Compared compared;
  const Result missing = compared.run("--steps 5", "/nowhere/python");
  CHECK(missing.code == 2);
  has(missing.error, "--python /nowhere/python: it cannot be started");
  compared.write("other", "#!/bin/sh\nexit 1\n");
  fs::permissions(compared.given().parent_path() / "other", fs::perms::owner_all);
  const Result other = compared.run("--steps 5", "./other");
  CHECK(other.code == 2);
  has(other.error, "it has no torch");
  compared.write(
      "python",
      "#!/bin/sh\nif [ \"$1\" = -c ]; then echo 9.9; exit 0; fi\necho it broke\nexit 3\n");
  const Result failed = compared.run("--steps 5 --rounds 1");
  CHECK(failed.code == 1);
  has(failed.error, "PyTorch: it ended with exit code 3");
  has(failed.error, "it broke");
  // Of Python's errors the first one counts, with the little that came before, whatever a launcher
  // prints after it.
  compared.write("python",
                 "#!/bin/sh\nif [ \"$1\" = -c ]; then echo 9.9; exit 0; fi\n"
                 "echo before; seq 500; echo 'rank0: Traceback (most recent call last)'\n"
                 "echo the reason; seq 5000; exit 1\n");
  const Result traced = compared.run("--steps 5 --rounds 1");
  has(traced.error, "\n500\nrank0: Traceback (most recent call last)\nthe reason\n");
  CHECK(traced.error.find("before") == std::string::npos);
  CHECK(run_program("bench compare run.toml").code == 2);  // no Python is named
}
