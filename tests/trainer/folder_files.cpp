// What transformers and PEFT read from a model's folder besides what a run reads: refused, or
// named.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

using trainer_test::Folder;
using trainer_test::has;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

namespace fs = std::filesystem;

const std::string reference = TESSERA_SOURCE_FOLDER "/tests/reference/data/";

/// A run of the stored folder `name`, as hf below `folder`, on some tokens.
std::string write_run(const Folder& folder, const std::string& name) {
  fs::copy(reference + "folders/" + name, folder.path() / "hf");
  std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (20,), }";
  header.resize(117, ' ');
  folder.write("ids.npy", std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" +
                              std::string(40, '\0'));
  return folder.write("run.toml", R"([model]
from = "hf"
[data]
tokens = ["ids.npy"]
seq_len = 4
validation = 0
[train]
steps = 1
batch = 2
)");
}

}  // namespace

TEST_CASE("a run starts from weights in the format of a plugin as from safetensors") {
  const Folder folder;
  const std::string config = write_run(folder, "plain");
  const std::string at = folder.path().string() + "/";
  const std::string flat = " --plugin " TESSERA_FORMATS "/Flat.so ";
  const auto trained = [&](const std::string& from, const std::string& to) {
    const Result result = run_program("train " + config + flat + "model.from=" + from +
                                      " checkpoint.folder=" + at + to + " log.metrics=");
    INFO(result.error);
    CHECK(result.code == 0);
    return at + to + "/step-00000001";
  };
  const Result converted =
      run_program("checkpoint convert " + at + "hf --to " + at + "flat --format Flat" + flat);
  INFO(converted.error);
  REQUIRE(converted.code == 0);
  fs::copy(at + "hf/config.json", at + "flat");
  const std::string one = trained(at + "hf", "a");
  const std::string other = trained(at + "flat", "b");
  CHECK(run_program("checkpoint diff " + one + " " + other).code == 0);
  // Other weights are another run.
  const std::string bytes = trainer_test::read_file(at + "flat/tensors.bin");
  std::ofstream(at + "flat/tensors.bin") << std::string(bytes.size(), '\0');
  const Result resumed =
      run_program("train " + config + flat + "model.from=" + at + "flat checkpoint.folder=" + at +
                  "b log.metrics= "
                  "train.steps=2");
  CHECK(resumed.code == 2);
  has(resumed.error, "model.from");
}

TEST_CASE("an adapter beside a model's weights is refused, or is the run's adapter") {
  const Folder folder;
  const std::string config = write_run(folder, "plain");
  const auto run = [&](const std::string& more) {
    return run_program("train " + config + " --dry-run " + more);
  };
  CHECK(run("").code == 0);
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy(reference + "adapters/lora/" + file, folder.path() / "hf");
  }
  const Result refused = run("");
  CHECK(refused.code == 2);
  has(refused.error, "run.toml:2: model.from: ");
  has(refused.error, "hf/adapter_config.json: transformers adds this adapter");
  has(refused.error, "set model.adapter to the same folder");
  // What the error advises.
  const std::string layers =
      "'parallel=[{style=LoRA,on=[\"**.{q_proj,k_proj,v_proj,o_proj}\"],"
      "options={rank=4,alpha=8}}]' ";
  const Result applied = run(layers + "model.adapter=hf");
  INFO(applied.error);
  CHECK(applied.code == 0);
  CHECK(applied.out.find("left out") == std::string::npos);
  has(applied.out, "of the model 'plain' by its adapter_config.json");
  CHECK(run(layers + "model.adapter=" + reference + "adapters/lora").code == 2);
  fs::remove(folder.path() / "hf/adapter_config.json");
  const Result left = run("");
  CHECK(left.code == 0);
  has(left.out, "left out: adapter_model.safetensors");
}

TEST_CASE("other weights of a folder, and code for it, are named before the run") {
  const Folder folder;
  const std::string config = write_run(folder, "sharded_files");
  const auto weights = [&] {
    const Result result = run_program("train " + config + " --dry-run");
    INFO(result.error);
    CHECK(result.code == 0);
    const std::size_t begin = result.out.find("  weights ");
    REQUIRE(begin != std::string::npos);
    return result.out.substr(begin, result.out.find('\n', begin) - begin);
  };
  const std::string plain = weights();
  has(plain, "5 files of ");
  CHECK(plain.find("left out") == std::string::npos);
  for (const char* name : {"pytorch_model.bin", "model.fp16.safetensors", "model.gguf",
                           "custom_generate/generate.py", "README.md", "tokenizer.json"}) {
    folder.write(std::string("hf/") + name, "x");
  }
  has(weights(),
      "left out: custom_generate/, model.fp16.safetensors, model.gguf, pytorch_model.bin");
  CHECK(weights().find("README") == std::string::npos);
  // Where both forms are there, transformers and this program read the one file.
  fs::copy(reference + "folders/plain/model.safetensors", folder.path() / "hf");
  fs::copy(reference + "folders/plain/config.json", folder.path() / "hf",
           fs::copy_options::overwrite_existing);
  const std::string one = weights();
  has(one, "model.safetensors of ");
  has(one, "model-00001-of-00005.safetensors, ");
  has(one, " and 4 more");
}

TEST_CASE("a config.json that names other files is refused") {
  const Folder folder;
  const std::string config = write_run(folder, "plain");
  const std::string file = (folder.path() / "hf/config.json").string();
  const std::string text = trainer_test::read_file(file);
  const auto with = [&](const std::string& entry) {
    folder.write("hf/config.json", "{" + entry + "," + text.substr(text.find('{') + 1));
    return run_program("train " + config + " --dry-run").error;
  };
  has(with(R"("configuration_files": ["config.4.0.0.json"])"),
      "configuration_files [\"config.4.0.0.json\"] is not supported");
  has(with(R"("transformers_weights": "other.safetensors")"), "transformers_weights \"other");
  CHECK(with(R"("transformers_weights": "model.safetensors")").empty());
}
