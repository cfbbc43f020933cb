module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.checkpoint;
import tessera.conformance;
import tessera.runs;
import tessera.app.base;
import tessera.app.config;
import :calls;

namespace tessera::app::first_day {
namespace {

using Json = nlohmann::json;
using conformance::CallResult;
using conformance::CallSample;

/// Whether a device's kernel may be compared with calls of it.
bool can_be_repeated(const Op& op) {
  return op.communicates == Communicates::none && op.distributed == nullptr && op.view == nullptr &&
         op.name != std::string_view("to_device");
}

/// Hands calls to a recorder, larger ones than it keeps by itself.
class StepMode final : public Mode {
 public:
  explicit StepMode(conformance::Recorder& recorder) : recorder_(recorder) {}

  Tensors call(const Call& heard, NextCall& next) override {
    constexpr std::int64_t largest = 1 << 13;
    std::vector<Tensor> inputs = conformance::copies_of(heard.in);  // before one is written
    Tensors out = next(heard);
    if (can_be_repeated(heard.op)) {
      recorder_.add(heard.op, std::move(inputs), heard.attributes, {}, largest);
    }
    return out;
  }

 private:
  conformance::Recorder& recorder_;
};

/// Two steps of a run on this process alone.
void hear_run(conformance::Recorder& recorder, const std::vector<std::string>& words) {
  runs::Run run;
  const std::vector<std::string> overrides(words.begin() + 1, words.end());
  run.config = load_config(words[0], overrides);
  const auto task = runs::open_language_task(run.config);
  run.config = runs::with_data(std::move(run.config), task->data());
  run.task = task;
  runs::Trainer trainer(run, cpu);
  trainer.step();
  StepMode mode(recorder);
  const ModeScope scope(ModeLevel::below_distribution, mode);
  trainer.step();
}

/// Tensors of a file by name, and the list of calls as JSON.
struct Recording {
  std::map<std::string, Tensor> tensors;
  Json calls = Json::array();
  std::set<std::string> in_training;

  /// Adds the list under `name`; returns for each entry whether it is there.
  Json add(const std::string& name, const std::vector<Tensor>& list) {
    Json there = Json::array();
    for (std::size_t i = 0; i < list.size(); ++i) {
      there.push_back(list[i].defined());
      if (list[i]) {
        tensors[name + "." + std::to_string(i)] = list[i];
      }
    }
    return there;
  }

  void add(const CallSample& sample) {
    const std::string at = std::to_string(calls.size());
    const CallResult result = conformance::call_plain(sample, conformance::copies_of(sample.inputs),
                                                      conformance::copy_of);
    Json call = {{"op", sample.op->name},
                 {"name", sample.name},
                 {"training", in_training.contains(sample.op->name)},
                 {"error", result.error},
                 {"backward_error", result.backward_error},
                 {"in", add(at + ".in", sample.inputs)},
                 {"given", add(at + ".given", sample.output_gradients)},
                 {"out", add(at + ".out", result.out)},
                 {"written", add(at + ".written", result.written)},
                 {"gradients", add(at + ".gradient", result.gradients)}};
    if (sample.op->arguments != nullptr) {
      call["arguments"] = to_json(*sample.op->arguments, sample.attributes);
    }
    calls.push_back(std::move(call));
  }

  void write(const std::string& path) const {
    std::map<std::string, TensorInfo> infos;
    for (const auto& [name, x] : tensors) {
      infos[name] = {.dtype = x.dtype(), .shape = x.shape()};
    }
    SafetensorsWriter writer(path, infos, {{"calls", json_text(calls)}});
    for (const auto& [name, x] : tensors) {
      writer.write(name, x);
    }
    writer.finish();
  }
};

}  // namespace

void record_calls(const std::string& path, const std::vector<std::vector<std::string>>& runs) {
  constexpr std::size_t of_each = 2;
  Recording recording;
  conformance::Recorder steps(of_each, true);
  for (const std::vector<std::string>& run : runs) {
    steps.source = "step";
    hear_run(steps, run);
    steps.allow_more(&run == &runs.front() ? of_each : 0);  // other precisions have other calls
  }
  for (const auto& [name, samples] : steps.by_op) {
    recording.in_training.insert(name);
  }
  conformance::Recorder made(of_each, true);
  conformance::hear_training(made);
  for (const Op* op : all_ops()) {
    if (can_be_repeated(*op)) {
      conformance::make_samples(*op, made);
    }
  }
  for (const auto* recorder : {&steps, &made}) {
    for (const auto& [name, samples] : recorder->by_op) {
      if (!can_be_repeated(load_operator(name))) {
        continue;
      }
      for (const CallSample& sample : samples) {
        recording.add(sample);
      }
    }
  }
  recording.write(path);
}

StoredCalls::StoredCalls(const std::string& path, DeviceType type)
    : file_(std::make_unique<SafetensorsFile>(path)) {
  const auto list = file_->metadata().find("calls");
  const Json calls = list == file_->metadata().end() ? Json() : parse_json(list->second, false);
  if (!calls.is_array()) {
    fail_input({.thing = path, .wrong = "it has no list of calls", .advice = "pack again"});
  }
  std::vector<std::string> later;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Json& call = calls[i];
    const auto name = call.at("op").get<std::string>();
    if (!kernel_of(load_operator(name), type)) {
      continue;
    }
    std::vector<Entry>& entries = entries_[name];
    if (entries.empty()) {
      (call.at("training").get<bool>() ? operators_ : later).push_back(name);
    }
    entries.push_back({.place = i, .json = json_text(call)});
  }
  operators_.insert(operators_.end(), later.begin(), later.end());
}

std::vector<Tensor> StoredCalls::tensors(const std::string& name,
                                         const std::vector<bool>& there) const {
  std::vector<Tensor> all;
  for (const bool is_there : there) {
    all.push_back(is_there ? file_->read(name + "." + std::to_string(all.size())) : Tensor());
  }
  return all;
}

conformance::DeviceAccount StoredCalls::compare(const std::string& name, Device device) const {
  const HostFallback gradients_may_fall_back;
  conformance::DeviceAccount account;
  const Op& op = load_operator(name);
  for (const Entry& entry : entries_.at(name)) {
    const Json call = parse_json(entry.json);
    const auto listed = [&](const char* key, const char* stored) {
      return tensors(fmt::format("{}.{}", entry.place, stored),
                     call.at(key).get<std::vector<bool>>());
    };
    CallSample sample{.op = &op,
                      .name = call.at("name"),
                      .inputs = listed("in", "in"),
                      .attributes = {},
                      .output_gradients = listed("given", "given")};
    if (op.arguments != nullptr) {
      sample.attributes =
          attributes_from_json(*op.arguments, call.at("arguments").get<std::string>(), name);
    }
    CallResult expected;
    expected.error = call.at("error");
    expected.backward_error = call.at("backward_error");
    expected.out = listed("out", "out");
    expected.written = listed("written", "written");
    expected.gradients = listed("gradients", "gradient");
    conformance::compare_with(expected, sample, "", sample.inputs, 1, device, account);
  }
  return account;
}

}  // namespace tessera::app::first_day
