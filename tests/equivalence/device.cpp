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

/// The CPU's run in a layout, whole or in parts, against runs on devices.
class OnDevices {
 public:
  OnDevices(const equivalence::Layout& where, bool in_parts)
      : where_(where),
        overrides_(in_parts ? "checkpoint.every=0 train.activation_checkpointing=true "
                              "train.micro_batch=" +
                                  std::to_string(where.micro_batch)
                            : "checkpoint.every=0"),
        on_cpu_(train(folder_, "cpu", kConfig, where, overrides_)) {
    CHECK(on_cpu_.size() == 6);
  }

  void eager(const std::string& device) const { check(device); }
  void captured(const std::string& device, const std::string& executor) const {
    check("graph.capture=true graph.executor=" + executor + " " + device);
  }

 private:
  void check(const std::string& more) const {
    INFO(where_.name << " " << overrides_ << " " << more);
    CHECK(same_bits(train(folder_, "device", kConfig, where_, overrides_ + " " + more), on_cpu_));
  }

  Folder folder_;
  const equivalence::Layout& where_;
  std::string overrides_;
  std::vector<Step> on_cpu_;
};

}  // namespace

TEST_CASE("a run on a device has the CPU's bits, in each layout", "[device]") {
  const std::string devices[] = {kOnDevice, kConnected};
  const std::string executors[] = {"planned", "interpreter", "compiled"};
  std::size_t turn = 0;  // each of these forms in turn; of this device, compiled steps are planned
  for (const equivalence::Layout& where : equivalence::layouts()) {
    const OnDevices runs(where, turn / 2 % 2 == 0);
    runs.eager(devices[turn % 2]);
    runs.captured(devices[1 - turn % 2], executors[turn / 2 % 3]);
    ++turn;
  }
}

TEST_CASE("a run on a device has the CPU's bits, in each layout and in every form", "[.long]") {
  for (const equivalence::Layout& where : equivalence::layouts()) {
    for (const bool in_parts : {false, true}) {
      const OnDevices runs(where, in_parts);
      for (const std::string& device : {kOnDevice, kConnected}) {
        runs.eager(device);
        runs.captured(device, "planned");
        runs.captured(device, "interpreter");
      }
    }
  }
}

TEST_CASE("a run that communicates in the background has the same bits, in each layout",
          "[device]") {
  const Folder folder;
  bool on_device = false;  // every other layout
  for (const equivalence::Layout& where : equivalence::layouts()) {
    INFO(where.name);
    const std::string overrides =
        "checkpoint.every=0 train.micro_batch=" + std::to_string(where.micro_batch);
    const std::vector<Step> usual = train(folder, "usual", kConfig, where, overrides);
    CHECK(same_bits(train(folder, "background", kConfig, where,
                          overrides + " mesh.background=true " + (on_device ? kOnDevice : "")),
                    usual));
    on_device = !on_device;
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
  CHECK(error("train.device=meta").find("it has no memory") != std::string::npos);
}
