// What a training saves and continues from.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import :captured_steps;
import :eager_steps;
import :step_plan;
import :training_checkpoints;

namespace tessera {
namespace {

constexpr const char* random_prefix = "progress.random.";
constexpr const char* skipped_name = "progress.skipped";
constexpr const char* added_pattern = "transform.**";
constexpr const char* scaler_prefix = "progress.scaler";
const std::string text_prefix = "progress.text.";

[[noreturn]] void wrong_scalar(const std::string& path, const std::string& name,
                               const std::string& expected) {
  fail_input({.thing = path,
              .wrong = fmt::format("scalar '{}': expected {}", name, expected),
              .advice = "use another checkpoint"});
}

std::int64_t number(const TensorSource& reader, const std::string& name) {
  const auto found = reader.scalars().find(name);
  if (found == reader.scalars().end() || !std::holds_alternative<std::int64_t>(found->second)) {
    wrong_scalar(reader.path(), name, "a whole number");
  }
  return std::get<std::int64_t>(found->second);
}

std::int64_t count(const TensorSource& reader, const std::string& name) {
  const std::int64_t value = number(reader, name);
  if (value < 0) {
    wrong_scalar(reader.path(), name, fmt::format("a whole number of at least 0, got {}", value));
  }
  return value;
}

}  // namespace

std::string stored_text(const TensorSource& reader, const std::string& name) {
  const auto found = reader.scalars().find(text_prefix + name);
  if (found == reader.scalars().end()) {
    return "";
  }
  if (!std::holds_alternative<std::string>(found->second)) {
    wrong_scalar(reader.path(), found->first, "a text");
  }
  return std::get<std::string>(found->second);
}

StateDict training_state(nn::Module& model, const optim::Optimizer& optimizer) {
  StateDict all;
  all.merge("model", {.tensors = nn::values_by_name(optimizer.parameters()), .scalars = {}});
  StateDict buffers;
  for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
    if (buffer->saved) {
      buffers.tensors.emplace(buffer->name, buffer->value);
    }
  }
  all.merge("model", buffers);
  all.merge("optimizer", optimizer.state());
  return all;
}

TrainingProgress read_training_progress(const TensorSource& reader) {
  TrainingProgress progress;
  progress.step = count(reader, "progress.step");
  progress.tokens = count(reader, "progress.tokens");
  if (reader.scalars().contains(skipped_name)) {
    progress.skipped = count(reader, skipped_name);
  }
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

namespace {

/// Leaves out what another stage's ranks save.
void erase_copies(StateDict& state, const parallel::Stages& stages,
                  std::span<const nn::ParameterPointer> parameters) {
  for (const nn::ParameterPointer& parameter : parameters) {
    if (stages.is_copy(*parameter)) {
      std::erase_if(state.tensors, [&](const auto& tensor) {
        return tensor.first.ends_with("." + parameter->name);
      });
    }
  }
}

/// Patterns of what a checkpoint has of stages that are on other ranks.
std::vector<std::string> patterns_of_absent(nn::Module& model) {
  std::vector<std::string> patterns;
  for (const std::string& name : nn::absent_modules(model)) {
    patterns.push_back(fmt::format("model.{}.**", name));
    patterns.push_back(fmt::format("optimizer.*.{}.**", name));
  }
  return patterns;
}

}  // namespace

StateDict TrainingCheckpoints::state() {
  captured_.finish_updates();
  StateDict all = live_state();
  if (const parallel::Stages* const stages = steps_.plan.stages()) {
    erase_copies(all, *stages, steps_.optimizer->parameters());
  }
  return all;
}

StateDict TrainingCheckpoints::saved_state() { return stored_part(state(), base_); }

SaveOptions TrainingCheckpoints::with_base(SaveOptions options) const {
  if (!options.base && base_ && !base_->tensors.empty()) {
    options.base = base_;
  }
  return options;
}

bool TrainingCheckpoints::is_still_base(const TensorSource& reader, const StateDict& all) const {
  StateDict of_base;
  for (const auto& [name, info] : base_->tensors) {
    if (const auto found = all.tensors.find(name); found != all.tensors.end()) {
      of_base.tensors.insert(*found);
    }
  }
  const std::int32_t differs = has_stored_values(reader, of_base) ? 0 : 1;
  std::int32_t any = differs;
  collective::World::current().everyone().all_reduce(&differs, &any, 1, DType::i32, ReduceOp::max);
  return any == 0;
}

StateDict TrainingCheckpoints::live_state() const {
  StateDict all = training_state(steps_.model, *steps_.optimizer);
  for (const auto& [name, value] : captured_.added()) {
    all.tensors.emplace(name, from_local(value, Layout::replicated(steps_.plan.mesh())));
  }
  StateDict progress;
  progress.scalars["step"] = steps_.done;
  progress.scalars["tokens"] = steps_.tokens;
  if (steps_.skipped > 0) {
    progress.scalars["skipped"] = steps_.skipped;
  }
  if (steps_.scaler) {
    progress.merge("scaler", steps_.scaler->state());
  }
  for (const auto& [name, stream] : random_state()) {
    progress.scalars["random." + name + ".seed"] = static_cast<std::int64_t>(stream.seed);
    progress.scalars["random." + name + ".stream"] = static_cast<std::int64_t>(stream.stream);
    progress.scalars["random." + name + ".offset"] = static_cast<std::int64_t>(stream.offset);
  }
  for (const auto& [name, text] : texts_) {
    progress.scalars["text." + name] = text;
  }
  all.merge("progress", progress);
  return all;
}

void TrainingCheckpoints::saving(const std::function<void()>& act) {
  try {
    act();
  } catch (const collective::PeerFailed&) {
    throw;
  } catch (const CheckpointRefusal& error) {
    throw CheckpointRefusal(with_last(error), error.kind());
  } catch (const Error& error) {
    throw Error(with_last(error), error.kind());
  }
}

ErrorFields TrainingCheckpoints::with_last(const Error& error) {
  ErrorFields fields = error.fields();
  fields.advice += (fields.advice.empty() ? "" : "; ") + last();
  return fields;
}

std::optional<std::string> TrainingCheckpoints::saved(std::optional<std::string> folder) {
  if (folder) {
    last_ = *folder;
  }
  return folder;
}

void TrainingCheckpoints::save(const std::string& folder, const std::string& meta_data,
                               const SaveOptions& options) {
  wait();
  steps_.optimizer->prepare_state();
  saving([&] { save_checkpoint(folder, state(), meta_data, with_base(options)); });
  saved(folder);
}

void TrainingCheckpoints::start(const std::string& folder, const std::string& meta_data,
                                const SaveOptions& options) {
  wait();
  steps_.optimizer->prepare_state();
  saving([&] { saver_.start(folder, state(), meta_data, with_base(options)); });
}

std::optional<std::string> TrainingCheckpoints::finished() {
  std::optional<std::string> folder = std::exchange(ended_save_, std::nullopt);
  if (!folder) {
    saving([&] { folder = saver_.finished(); });
  }
  return saved(folder);
}

std::optional<std::string> TrainingCheckpoints::wait() {
  std::optional<std::string> folder = std::exchange(ended_save_, std::nullopt);
  if (!folder) {
    saving([&] { folder = saver_.wait(); });
  }
  return saved(folder);
}

void TrainingCheckpoints::keep(MemoryStateStore& in) {
  steps_.optimizer->prepare_state();
  in.keep(steps_.done, state());
}

void TrainingCheckpoints::load(const std::string& folder) {
  load(CheckpointReader(folder, OpenFiles::when_read), folder);
}

void TrainingCheckpoints::load(const TensorSource& reader, const std::string& last) {
  captured_.before_load();
  steps_.objects.before_optimizer();  // peers may still read for a step that an error has ended
  steps_.optimizer->prepare_state();
  const TrainingProgress progress = read_training_progress(reader);
  for (const auto& [name, info] : reader.tensors()) {
    if (name.starts_with(added_prefix) && captured_.transforms()) {
      captured_.expect_added(name, info.shape, info.dtype);
    }
  }
  StateDict all = live_state();
  // The checkpoint determines which random streams exist: one that only a step uses (dropout) may
  // not exist here yet. The same holds for skipped steps and for the scaler, which a run may add or
  // drop.
  const auto is_stored = [](const auto& scalar) {
    return scalar.first.starts_with(random_prefix) || scalar.first == skipped_name ||
           scalar.first.starts_with(scaler_prefix) || scalar.first.starts_with(text_prefix);
  };
  std::erase_if(all.scalars, is_stored);
  std::copy_if(reader.scalars().begin(), reader.scalars().end(),
               std::inserter(all.scalars, all.scalars.end()), is_stored);
  std::vector<std::string> ignored = patterns_of_absent(steps_.model);
  if (!captured_.transforms()) {
    ignored.emplace_back(added_pattern);
  }
  if (base_ && !base_->tensors.empty() && !is_still_base(reader, all)) {
    CheckpointBase whole = *base_;
    whole.tensors.clear();
    base_ = std::make_shared<const CheckpointBase>(std::move(whole));
  }
  load_state(reader, all,
             {.ignore = std::move(ignored), .base = base_ ? base_->hash : std::string()});
  steps_.optimizer->load_scalars(all.part("optimizer"));
  steps_.done = progress.step;
  steps_.tokens = progress.tokens;
  steps_.skipped = progress.skipped;
  if (const StateDict scaler = all.part(scaler_prefix); steps_.scaler && !scaler.scalars.empty()) {
    steps_.scaler->load(scaler);
    steps_.set_scale();
  }
  set_random_state(progress.streams);
  texts_.clear();
  for (const auto& [name, scalar] : reader.scalars()) {
    if (name.starts_with(text_prefix)) {
      const std::string own = name.substr(text_prefix.size());
      texts_[own] = stored_text(reader, own);
    }
  }
  last_ = last;
  captured_.after_load();
}

bool TrainingCheckpoints::resume(const std::string& folder) {
  const std::optional<std::string> newest = latest_checkpoint(folder);
  if (newest) {
    load(*newest);
  }
  return newest.has_value();
}

void TrainingCheckpoints::check_finite() {
  captured_.finish_updates();
  if (const auto name = first_not_finite(training_state(steps_.model, *steps_.optimizer))) {
    fail(fmt::format(
        "training: after step {} '{}' holds values that are NaN or infinite; {}{}", steps_.done,
        *name, steps_.done > steps_.skipped ? "a smaller learning rate may help; " : "", last()));
  }
}

std::string TrainingCheckpoints::last() {
  std::string failure;
  try {
    if (const std::optional<std::string> folder = saved(saver_.wait())) {
      ended_save_ = folder;
    }
  } catch (const std::exception& error) {
    if (!collective::is_of_peer(error)) {  // else the run ends with that error
      failure = fmt::format("; the save after it failed: {}", error.what());
    }
  }
  return (last_.empty() ? "no checkpoint was saved before"
                        : "the last good checkpoint is " + last_) +
         failure;
}

}  // namespace tessera
