// Runs on a device: the tests' adversarial one, whose memory the host cannot touch and whose queues
// run late and in odd orders. Losses and gradient norms have the CPU's bits.
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

using equivalence::checkpoint;
using equivalence::Folder;
using equivalence::layout;
using equivalence::Result;
using equivalence::same_bits;
using equivalence::Step;
using equivalence::train;

namespace {

const std::string kConfig = R"([model]
dim = 32
layers = 2
heads = 4
kv_heads = 2
dropout = 0.1
[data]
text = [")" TESSERA_SOURCE_FOLDER R"(/README.md"]
tokenizer = "bytes"
seq_len = 24
validation = 0.05
validation_windows = 12
[train]
steps = 6
batch = 12
[optimizer]
lr = 1e-3
schedule = "constant"
)";

const std::string kOnDevice = "--plugin " ADVERSARY " train.device=adversary";

}  // namespace

TEST_CASE("a run on a device has the CPU's bits, in each layout that uses no shared memory",
          "[device]") {
  const Folder folder;
  for (const char* name : {"one rank", "Replicate 2", "TP 2", "TP 2 with sequence parallel",
                           "TP 2 with sequence and loss parallel"}) {
    for (const char* more : {"", "train.micro_batch=2 train.activation_checkpointing=true"}) {
      INFO(name << " " << more);
      const std::string overrides = std::string("checkpoint.every=0 ") + more;
      const std::vector<Step> on_cpu = train(folder, "cpu", kConfig, layout(name), overrides);
      const std::vector<Step> on_device =
          train(folder, "device", kConfig, layout(name), overrides + " " + kOnDevice);
      CHECK(on_cpu.size() == 6);
      CHECK(same_bits(on_device, on_cpu));
    }
  }
}

TEST_CASE("a run that was saved on a device goes on on the CPU, and the other way round",
          "[device]") {
  const Folder folder;
  const auto& where = layout("TP 2");
  const std::vector<Step> whole = train(folder, "whole", kConfig, where, "checkpoint.every=0");
  for (const bool device_first : {true, false}) {
    const std::string first = device_first ? " " + kOnDevice : "";
    const std::string second = device_first ? "" : " " + kOnDevice;
    train(folder, "first", kConfig, where, "train.steps=3 checkpoint.every=3" + first);
    const std::vector<Step> rest =
        train(folder, "second", kConfig, where,
              "checkpoint.resume=" + checkpoint(folder, "first", 3) + second);
    CHECK(same_bits(rest, std::vector<Step>(whole.begin() + 3, whole.end())));
  }
}

TEST_CASE("devices that do not exist, and styles that need shared memory, are refused",
          "[device]") {
  const Folder folder;
  const std::string config = folder.write("run.toml", kConfig);
  const auto error = [&](const std::string& more) {
    const Result result = equivalence::run("train " + config + " " + more);
    CHECK(result.code == 2);
    return result.error;
  };
  CHECK(error("train.device=adversery --plugin " ADVERSARY).find("did you mean 'adversary'") !=
        std::string::npos);
  CHECK(error("train.device=adversary:99 --plugin " ADVERSARY).find("there is no such device") !=
        std::string::npos);
  CHECK(error("train.device=meta").find("it has no memory") != std::string::npos);
  const std::string sharded = folder.write("sharded.toml", kConfig + layout("FSDP 2").config);
  const Result result = equivalence::run("train " + sharded + " " + kOnDevice);
  CHECK(result.code == 2);
  CHECK(result.error.find("a style keeps parameter") != std::string::npos);
}
