// What a trainer saves and what a run continues from.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "llama_config.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;

#include "training/setup.hpp"
#include "training/trainer.hpp"

namespace tessera::app {
namespace {

constexpr const char* random_prefix = "progress.random.";

/// What a checkpoint holds of the model and its optimizer.
StateDict training_state(const optim::Optimizer& optimizer) {
  StateDict all;
  StateDict weights;
  for (const nn::ParameterPointer& parameter : optimizer.parameters()) {
    weights.tensors.emplace(parameter->name, parameter->value);
  }
  all.merge("model", weights);
  all.merge("optimizer", optimizer.state());
  return all;
}

[[noreturn]] void wrong_scalar(const std::string& path, const std::string& name,
                               const std::string& expected) {
  fail_input(
      fmt::format("{}: scalar '{}': expected {}; use another checkpoint", path, name, expected));
}

std::int64_t number(const CheckpointReader& reader, const std::string& name) {
  const auto found = reader.scalars().find(name);
  if (found == reader.scalars().end() || !std::holds_alternative<std::int64_t>(found->second)) {
    wrong_scalar(reader.path(), name, "a whole number");
  }
  return std::get<std::int64_t>(found->second);
}

std::int64_t count(const CheckpointReader& reader, const std::string& name) {
  const std::int64_t value = number(reader, name);
  if (value < 0) {
    wrong_scalar(reader.path(), name, fmt::format("a whole number of at least 0, got {}", value));
  }
  return value;
}

/// What a checkpoint says of the run besides its tensors.
struct SavedProgress {
  std::int64_t step = 0;
  std::map<std::string, RandomStream> streams;
};

/// Error (input) that names the scalar: it is absent, of a wrong type or out of range.
SavedProgress read_progress(const CheckpointReader& reader) {
  SavedProgress progress;
  progress.step = count(reader, "progress.step");
  for (const auto& [name, value] : reader.scalars()) {
    if (name.starts_with("optimizer.step.")) {
      count(reader, name);
    }
    if (!name.starts_with(random_prefix)) {
      continue;
    }
    const std::size_t dot = name.rfind('.');
    const std::string front = name.substr(0, dot + 1);
    const std::string field = name.substr(dot + 1);
    if (front == random_prefix || (field != "seed" && field != "stream" && field != "offset")) {
      wrong_scalar(reader.path(), name, "seed, stream or offset of a random stream");
    }
    // Seeds are any 64 bits, and are stored as signed numbers.
    progress.streams[front.substr(std::string(random_prefix).size(),
                                  front.size() - std::string(random_prefix).size() - 1)] = {
        .seed = static_cast<std::uint64_t>(number(reader, front + "seed")),
        .stream = static_cast<std::uint64_t>(number(reader, front + "stream")),
        .offset = static_cast<std::uint64_t>(number(reader, front + "offset"))};
  }
  return progress;
}

/// Says when a longer or shorter run moves the end of a schedule: the step count is no difference.
void note_schedule(const Run& run, const CheckpointReader& reader, StartPoint& start) {
  const auto meta = nlohmann::json::parse(reader.meta());
  const nlohmann::json::json_pointer key("/config/train/steps");
  const std::int64_t steps = run.config.train.steps;
  if (make_schedule(run.config.optimizer, steps).has_end() && meta.contains(key) &&
      meta[key] != steps) {
    start.notes.push_back(
        fmt::format("train.steps was {} and is {}: the {} schedule now ends there",
                    meta[key].dump(), steps, run.config.optimizer.schedule));
  }
}

}  // namespace

StateDict Trainer::state() const {
  StateDict all = training_state(*optimizer_);
  StateDict progress;
  progress.scalars["step"] = done_;
  for (const auto& [name, stream] : random_state()) {
    progress.scalars["random." + name + ".seed"] = static_cast<std::int64_t>(stream.seed);
    progress.scalars["random." + name + ".stream"] = static_cast<std::int64_t>(stream.stream);
    progress.scalars["random." + name + ".offset"] = static_cast<std::int64_t>(stream.offset);
  }
  all.merge("progress", progress);
  return all;
}

void Trainer::save(const std::string& checkpoint) {
  optimizer_->prepare_state();
  const std::string meta = fmt::format(
      R"({{"config": {}, "model": {}, "generation": {}, "fingerprint": {}}})", to_json(run_.config),
      hugging_face_config(run_.shape), generation_config(run_.shape), to_json(run_.fingerprint));
  try {
    save_checkpoint(checkpoint, state(), meta);
  } catch (const collective::PeerFailed&) {
    throw;
  } catch (const Error& error) {
    throw Error(fmt::format("{}; {}", error.what(), last_checkpoint()), error.kind());
  }
  last_checkpoint_ = checkpoint;
}

void Trainer::resume(const std::string& checkpoint) {
  optimizer_->prepare_state();
  const CheckpointReader reader(checkpoint);
  const SavedProgress progress = read_progress(reader);
  StateDict all = state();
  // Which random streams exist is the checkpoint's to say: one that only a step uses, such as
  // dropout's, is not among this process's yet.
  const auto is_random = [](const auto& scalar) { return scalar.first.starts_with(random_prefix); };
  std::erase_if(all.scalars, is_random);
  std::copy_if(reader.scalars().begin(), reader.scalars().end(),
               std::inserter(all.scalars, all.scalars.end()), is_random);
  load_state(reader, all, {});
  optimizer_->load_scalars(all.part("optimizer"));
  done_ = progress.step;
  set_random_state(progress.streams);
  last_checkpoint_ = checkpoint;
}

void Trainer::check_finite() const {
  if (const auto name = first_not_finite(training_state(*optimizer_))) {
    fail(
        fmt::format("train: after step {} '{}' holds values that are NaN or infinite; a smaller "
                    "optimizer.lr may help; {}",
                    done_, *name, last_checkpoint()));
  }
}

std::string Trainer::last_checkpoint() const {
  return last_checkpoint_.empty() ? "no checkpoint was saved before"
                                  : "the last good checkpoint is " + last_checkpoint_;
}

StartPoint check_stored(const Run& run, const std::optional<std::string>& resume,
                        bool weight_values) {
  const auto model = make_model(run.shape, run.config);
  if (!run.config.model.from.empty()) {
    StateDict named;
    for (const auto& [name, parameter] : nn::named_parameters(*model)) {
      named.tensors.emplace(name, parameter->value);
    }
    const SafetensorsFolder weights(run.config.model.from);
    check_weights(weights, named);
    if (weight_values) {
      check_weight_values(weights, named);
    }
  }
  StartPoint start;
  if (!resume) {
    return start;
  }
  const CheckpointReader reader(*resume);
  start.checkpoint = resume;
  start.notes =
      compare(stored_fingerprint(reader.meta(), *resume), run.fingerprint, run.config, *resume);
  for (std::string& note : start.notes) {
    note = "allowed difference: " + note;
  }
  const auto optimizer =
      make_optimizer(run.config, nn::all_parameters(*model));  // its state is meta too
  optimizer->prepare_state();
  check_state(reader, training_state(*optimizer));
  start.step = read_progress(reader).step;
  const std::string name = std::filesystem::path(*resume).filename();
  const std::string expected = std::filesystem::path(checkpoint_folder("", start.step)).filename();
  if (name.starts_with("step-") && name != expected) {
    fail_input(
        fmt::format("{}: it holds the checkpoint of step {} (expected the name {}); rename it",
                    *resume, start.step, expected));
  }
  if (start.step > run.config.train.steps) {
    fail_input(
        fmt::format("{}: the run to continue has done {} steps ({}), more than {}; raise "
                    "train.steps, or name another checkpoint.folder to start a new run",
                    run.config.place("train.steps"), start.step, *resume, run.config.train.steps));
  }
  note_schedule(run, reader, start);
  return start;
}

}  // namespace tessera::app
