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
/// With collectives of its own.
const std::string kConnected = "--plugin " ADVERSARY_CONNECTED " train.device=adversary";

}  // namespace

TEST_CASE("a run on a device has the CPU's bits, in each layout", "[device]") {
  const Folder folder;
  for (const equivalence::Layout& where : equivalence::layouts()) {
    for (const bool in_parts : {false, true}) {
      const std::string overrides =
          in_parts ? "checkpoint.every=0 train.activation_checkpointing=true train.micro_batch=" +
                         std::to_string(where.micro_batch)
                   : "checkpoint.every=0";
      INFO(where.name << " " << overrides);
      const std::vector<Step> on_cpu = train(folder, "cpu", kConfig, where, overrides);
      const std::vector<Step> on_device =
          train(folder, "device", kConfig, where, overrides + " " + kOnDevice);
      CHECK(on_cpu.size() == 6);
      CHECK(same_bits(on_device, on_cpu));
      CHECK(same_bits(train(folder, "connected", kConfig, where, overrides + " " + kConnected),
                      on_cpu));
      for (const std::string executor : {"planned", "interpreter"}) {
        for (const std::string& device : {kOnDevice, kConnected}) {
          CHECK(same_bits(
              train(folder, "captured", kConfig, where,
                    overrides + " graph.capture=true graph.executor=" + executor + " " + device),
              on_cpu));
        }
      }
    }
  }
}

TEST_CASE("a run that communicates in the background has the same bits, in each layout",
          "[device]") {
  const Folder folder;
  for (const equivalence::Layout& where : equivalence::layouts()) {
    INFO(where.name);
    const std::string overrides =
        "checkpoint.every=0 train.micro_batch=" + std::to_string(where.micro_batch);
    const std::vector<Step> usual = train(folder, "usual", kConfig, where, overrides);
    for (const char* device : {"", kOnDevice.c_str()}) {
      CHECK(same_bits(train(folder, "background", kConfig, where,
                            overrides + " mesh.background=true " + device),
                      usual));
    }
  }
}

TEST_CASE("a run that was saved on a device goes on on the CPU, and the other way round",
          "[device]") {
  const Folder folder;
  for (const char* name : {"TP 2", "FSDP 2"}) {
    const auto& where = layout(name);
    const std::vector<Step> whole = train(folder, "whole", kConfig, where, "checkpoint.every=0");
    for (const bool device_first : {true, false}) {
      INFO(name << (device_first ? ", the device first" : ", the CPU first"));
      const std::string first = device_first ? " " + kOnDevice : "";
      const std::string second = device_first ? "" : " " + kOnDevice;
      train(folder, "first", kConfig, where, "train.steps=3 checkpoint.every=3" + first);
      const std::vector<Step> rest =
          train(folder, "second", kConfig, where,
                "checkpoint.resume=" + checkpoint(folder, "first", 3) + second);
      CHECK(same_bits(rest, std::vector<Step>(whole.begin() + 3, whole.end())));
    }
  }
}

TEST_CASE("devices that do not exist are refused", "[device]") {
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
  CHECK(error("graph.capture=true graph.executor=compiled " + kOnDevice)
            .find("kernels are compiled for the CPU only (got train.device = 'adversary')") !=
        std::string::npos);
  CHECK(error("train.device=meta").find("it has no memory") != std::string::npos);
}
