// Steps that are recorded, and then replayed.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;

namespace tessera {
namespace {

/// In the first step styles record the order of their groups, and the optimizer makes its state.
constexpr std::int64_t steps_before = 2;

constexpr std::string_view parameter_prefix = "parameter.";

std::string lr_name(double scale) { return scale == 1 ? "lr" : fmt::format("lr*{}", scale); }

}  // namespace

void Training::set_replay(bool enabled, const graph::ExecutionOptions& execution) {
  graph::check(execution);
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    if (enabled && parameter->places.gradient) {
      fail_input(
          {.where = parameter->places.set_by,
           .wrong = fmt::format("the gradient of '{}' is kept elsewhere, and a step that does "
                                "this cannot be replayed",
                                parameter->name),
           .advice = "leave \"gradients\" out of the option 'what', or set graph.capture = "
                     "false"});
    }
  }
  replays_ = enabled;
  execution_ = execution;
  counts_ = {};
  first_recording_.reset();
  replay_.reset();
}

void Training::set_program(Program program) {
  set_replay(true, execution_);
  set_executor(std::move(program));
}

void Training::set_executor(Program program) {
  updated_.clear();
  for (const std::string& name : program.written("update")) {
    if (name.starts_with(parameter_prefix)) {
      updated_.push_back(name.substr(parameter_prefix.size()));
    }
  }
  given_parameters_.clear();
  replay_ = graph::make_executor(std::move(program), execution_);
  replayed_last_ = false;
  trained_ = trained();
}

std::vector<bool> Training::trained() const {
  std::vector<bool> all;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    all.push_back(parameter->value.requires_grad());
  }
  return all;
}

StepVariables Training::variables_of(const StepBatch& batch) const {
  StepVariables variables;
  variables.numbers["loss_scale"] = 1.0 / batch.weight;
  variables.numbers["max_value"] = clipping_.max_value * scale();
  variables.numbers["-max_value"] = -clipping_.max_value * scale();
  for (const auto& [name, value] : optimizer_->numbers(lr_of(batch), 1 / scale(), 0)) {
    variables.numbers[name] = value;
  }
  // Of steps that were begun, and of updates: a skipped step has none.
  variables.counts["begun"] = done_ + 1;
  variables.counts["step"] = done_ - skipped_ + 1;
  for (const auto& [name, drawn] :
       replay_ ? replay_->program().draws : std::map<std::string, std::uint64_t>()) {
    random_stream(name);  // made at its first use, which a replay from the first step has not had
  }
  variables.streams = random_state();
  return variables;
}

void Training::set_update(StepVariables& variables, double lr, double grad_scale,
                          std::int64_t more_steps) const {
  for (const double scale : optimizer_->lr_scales()) {
    variables.numbers[lr_name(scale)] = lr * scale;
  }
  for (const auto& [name, value] : optimizer_->numbers(lr, grad_scale, more_steps)) {
    variables.numbers[name] = value;
  }
  variables.numbers["grad_scale"] = grad_scale;
  variables.counts["step"] = done_ - skipped_ + 1 + more_steps;
}

std::map<std::string, Tensor> Training::inputs() const {
  std::map<std::string, Tensor> all;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    all.emplace(std::string(parameter_prefix) + parameter->name, parameter->value.local());
  }
  for (const nn::BufferPointer& buffer : nn::all_buffers(model_)) {
    all.emplace("buffer." + buffer->name,
                buffer->value.is_distributed() ? buffer->value.local() : buffer->value);
  }
  for (const auto& [name, value] : optimizer_->state().tensors) {
    all.emplace("optimizer." + name, value.local());
  }
  if (scaler_) {
    all.emplace("scaler.scale", scale_);
  }
  return all;
}

StepResult Training::record_step(const StepBatch& batch, const StepFunctions& functions) {
  if (replay_) {
    counts_.refusal = refusal(batch);
    if (counts_.refusal.empty()) {
      if (!replayed_last_) {  // what styles derive from parameters is an input of the program
        plan_.after_optimizer();
      }
      if (const std::optional<StepResult> result = replay_step(batch, functions)) {
        ++counts_.replayed;
        replayed_last_ = true;
        return *result;
      }
    }
  }
  replayed_last_ = false;
  if (replay_ || counts_.eager < steps_before) {
    const StepResult result = take_step(batch, functions, nullptr);
    ++counts_.eager;
    return result;
  }
  StepVariables variables = variables_of(batch);
  Recorder recorder;
  for (const auto& [name, tensor] : inputs()) {
    recorder.input(name, tensor);
  }
  const double scale_of_step = scale();
  const StepResult result = take_step(batch, functions, &recorder);
  if (result.skipped) {  // it has no update to record
    ++counts_.eager;
    return result;
  }
  constexpr std::int64_t already_counted = -1;
  set_update(variables, result.lr,
             optim::clip_factor(result.grad_norm, clipping_.max_norm) / scale_of_step,
             already_counted);
  Recording recording = recorder.finish(variables);
  ++counts_.recorded;
  if (!first_recording_) {
    first_recording_ = std::move(recording);
  } else {
    set_executor(program_of(*std::exchange(first_recording_, std::nullopt), recording));
  }
  return result;
}

std::string Training::refusal(const StepBatch& batch) const {
  const Program& program = replay_->program();
  const std::int64_t micro_batches = rows_of(batch).micro_batches();
  if (trained() != trained_) {
    return "other parameters are frozen than when the step was recorded";
  }
  std::set<std::string> recorded;
  for (const auto& [name, number] : program.inputs) {
    if (name.starts_with("rows.")) {
      recorded.insert(name.substr(0, name.rfind('.')));
    }
  }
  if (!recorded.empty() && static_cast<std::int64_t>(recorded.size()) != micro_batches) {
    return fmt::format("the step has {} micro-batches and the recorded one had {}", micro_batches,
                       recorded.size());
  }
  return replay_->refusal(variables_of(batch));
}

bool Training::gather_inputs(const StepBatch& batch, const StepFunctions& functions) {
  const Program& program = replay_->program();
  std::map<std::string, Tensor> rows;
  rows_of(batch).each(done_, [&](const MicroPart& part) {
    const Tensors tensors = functions.rows(part.batch);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = fmt::format("rows.{}.{}", part.number, i);
      const auto recorded = program.inputs.find(name);
      if (recorded != program.inputs.end() &&
          !(program.tensors[static_cast<std::size_t>(recorded->second)].shape ==
            tensors[i].shape())) {
        counts_.refusal = fmt::format("the rows have another shape ({}) than the recorded ones",
                                      to_string(tensors[i].shape()));
      }
      rows.emplace(name, tensors[i]);
    }
  });
  if (!counts_.refusal.empty()) {
    return false;
  }
  const std::vector<nn::ParameterPointer>& parameters = optimizer_->parameters();
  const bool same = std::ranges::equal(parameters, given_parameters_,
                                       [](const nn::ParameterPointer& now, const Tensor& before) {
                                         return now->value.same_as(before);
                                       });
  if (!same || !replayed_last_) {  // otherwise only the rows are others
    given_parameters_.clear();
    for (const nn::ParameterPointer& parameter : parameters) {
      given_parameters_.push_back(parameter->value);
    }
    std::map<std::string, Tensor> all = inputs();
    all.merge(rows);
    given_ = replay_->arranged(all);
    return true;
  }
  std::size_t at = 0;
  auto row = rows.begin();
  for (const auto& [name, number] : program.inputs) {
    if (row != rows.end() && row->first == name) {
      given_[at] = row->second;
      ++row;
    }
    ++at;
  }
  return true;
}

std::optional<StepResult> Training::replay_step(const StepBatch& batch,
                                                const StepFunctions& functions) {
  optimizer_->prepare_state();
  const MemoryScope scope(MemoryCategory::activation);
  if (!gather_inputs(batch, functions)) {
    return std::nullopt;
  }
  StepVariables variables = variables_of(batch);
  replay_->begin_in_order(given_);
  run_phase("replayed gradients", [&] { replay_->run("gradients", variables); });
  const StepResult result =
      checked(batch, replay_->output("loss").item(), replay_->output(norm_output()).item());
  replay_->run("free", variables);
  if (result.skipped) {
    replay_->end();
    count_step(batch, true);
    return result;
  }
  set_update(variables, result.lr, grad_scale(result));
  run_phase("replayed update", [&] { replay_->run("update", variables); });
  replay_->end();
  optimizer_->count_step(updated_);
  count_step(batch, false);
  return result;
}

}  // namespace tessera
