// Steps that are recorded, and then replayed.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
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
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :step_inputs;

namespace tessera {
namespace {

/// In the first step styles record the order of their groups, and the optimizer makes its state.
constexpr std::int64_t steps_before = 2;

/// Programs that are kept, each with its memory; and kinds of steps that are waiting for one.
constexpr std::size_t most_captures = 4;
constexpr std::size_t most_kinds = 16;

constexpr std::string_view parameter_prefix = "parameter.";

std::string lr_name(double scale) { return scale == 1 ? "lr" : fmt::format("lr*{}", scale); }

}  // namespace

void Training::set_replay(bool enabled, const graph::ExecutionOptions& execution) {
  graph::check(execution);
  finish_updates();
  replays_ = enabled;
  execution_ = execution;
  added_.clear();
  counts_ = {};
  captures_.clear();
  kinds_.clear();
  replayed_last_ = false;
}

void Training::set_program(Program program) {
  graph::AddedState kept = std::exchange(added_, {});
  set_replay(true, execution_);
  added_ = std::move(kept);
  add_capture(std::move(program), std::vector<std::int64_t>(optimizer_->parameters().size(), 0));
}

void Training::add_capture(Program program, std::vector<std::int64_t> missed) {
  finish_updates();
  Capture capture{.trained = trained(), .missed = std::move(missed)};
  if (captures_.size() >= most_captures) {
    captures_.erase(captures_.begin());  // its memory is free before the new one's is taken
  }
  capture.parts[Capture::whole_step].executor =
      graph::make_executor(std::move(program), execution_, &added_);
  add_parts(capture);
  for (const std::string& name : capture.whole().program().written("update")) {
    if (name.starts_with(parameter_prefix)) {
      capture.updated.push_back(name.substr(parameter_prefix.size()));
    }
  }
  const Device device = optimizer_->parameters().front()->value.device();
  for (auto& [name, value] : added_) {
    value = ops::to_device(value, device);
  }
  captures_.push_back(std::move(capture));
  ++counts_.captured;
  replayed_last_ = false;
}

std::vector<bool> Training::trained() const {
  std::vector<bool> all;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    all.push_back(parameter->value.requires_grad());
  }
  return all;
}

std::vector<std::int64_t> Training::missed_updates() const {
  std::vector<std::int64_t> missed = optimizer_->steps();
  const std::vector<bool> is_trained = trained();
  for (std::size_t i = 0; i < missed.size(); ++i) {
    missed[i] = is_trained[i] && missed[i] > 0 ? done_ - skipped_ - missed[i] : 0;
  }
  return missed;
}

StepVariables Training::variables_of(const StepBatch& batch, const Program* program) const {
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
       program != nullptr ? program->draws : std::map<std::string, std::uint64_t>()) {
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
    add_parameter(all, parameter->name, *parameter);
  }
  for (const nn::BufferPointer& buffer : nn::all_buffers(model_)) {
    add_buffer(all, buffer->name, *buffer);
  }
  add_state(all, "", *optimizer_);
  if (scaler_) {
    all.emplace("scaler.scale", scale_);
  }
  all.insert(added_.begin(), added_.end());
  return all;
}

StepResult Training::record_step(const StepBatch& batch, const StepFunctions& functions) {
  const StepRows rows = load_rows(batch, functions);
  Capture* const capture = capture_of(rows);
  if (capture != nullptr) {
    StepVariables variables = variables_of(batch, &capture->whole().program());
    counts_.refusal = capture->whole().refusal(variables);
    if (counts_.refusal.empty()) {
      return replay_step(batch, rows, *capture, std::move(variables));
    }
  }
  if (!execution_.transforms.empty()) {
    fail({.thing = fmt::format("transformation '{}'", execution_.transforms.front().name),
          .wrong = fmt::format("this step has no program that it could change ({})",
                               counts_.refusal.empty() ? "none was set" : counts_.refusal),
          .advice = "take steps of one kind, or leave the transformation out"});
  }
  finish_updates();
  rest_captures();
  const std::string name = kind_of(rows);
  if (kinds_.size() >= most_kinds && !kinds_.contains(name)) {
    kinds_.clear();
  }
  Kind& kind = kinds_[name];
  if (capture == nullptr && kind.eager >= steps_before) {
    return record_first_or_second(batch, functions, kind);
  }
  const StepResult result = take_step(batch, functions, nullptr);
  ++counts_.eager;
  ++kind.eager;
  return result;
}

StepResult Training::record_first_or_second(const StepBatch& batch, const StepFunctions& functions,
                                            Kind& kind) {
  StepVariables variables = variables_of(batch, nullptr);
  Recorder recorder;
  std::map<std::string, MemoryCategory> categories;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    categories[parameter_input(parameter->name)] = category_of_parameter(*parameter);
  }
  for (const auto& [name, tensor] : inputs()) {
    const auto category = categories.find(name);
    recorder.input(name, tensor,
                   category == categories.end() ? MemoryCategory::other : category->second);
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
  if (!kind.first) {
    kind.first = std::move(recording);
  } else {
    add_capture(program_of(*std::exchange(kind.first, std::nullopt), recording), missed_updates());
  }
  return result;
}

Training::StepRows Training::load_rows(const StepBatch& batch, const StepFunctions& functions) {
  StepRows rows{.micro_batches = rows_of(batch).micro_batches()};
  rows_of(batch).each(done_, [&](const MicroPart& part) {
    const Tensors tensors = functions.rows(part.batch);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      rows.tensors.emplace(fmt::format("rows.{}.{}", part.number, i), tensors[i]);
    }
  });
  return rows;
}

std::string Training::misfit(const Capture& capture, const StepRows& rows) const {
  if (trained() != capture.trained) {
    return "other parameters are frozen than when the step was recorded";
  }
  const std::vector<std::int64_t> steps = optimizer_->steps();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string& name = optimizer_->parameters()[i]->name;
    const std::int64_t missed = done_ - skipped_ - steps[i];  // also of one that had no update yet
    if (missed != capture.missed[i] &&
        std::ranges::find(capture.updated, name) != capture.updated.end()) {
      return fmt::format("'{}' has missed {} updates, and {} when the step was recorded", name,
                         missed, capture.missed[i]);
    }
  }
  const Program& program = capture.whole().program();
  std::set<std::string> recorded;
  for (const auto& [name, number] : program.inputs) {
    if (!name.starts_with("rows.")) {
      continue;
    }
    recorded.insert(name.substr(0, name.rfind('.')));
    const auto found = rows.tensors.find(name);
    const ProgramTensor& expected = program.tensors[static_cast<std::size_t>(number)];
    if (found != rows.tensors.end() &&
        (!(expected.shape == found->second.shape()) || expected.dtype != found->second.dtype())) {
      return fmt::format("the rows have another shape ({}) than the recorded ones",
                         to_string(found->second.shape()));
    }
  }
  if (!recorded.empty() && static_cast<std::int64_t>(recorded.size()) != rows.micro_batches) {
    return fmt::format("the step has {} micro-batches and the recorded one had {}",
                       rows.micro_batches, recorded.size());
  }
  return "";
}

Training::Capture* Training::capture_of(const StepRows& rows) {
  counts_.refusal.clear();
  for (auto one = captures_.end(); one != captures_.begin();) {
    --one;
    const std::string why = misfit(*one, rows);
    if (!why.empty()) {
      counts_.refusal = counts_.refusal.empty() ? why : counts_.refusal;
      continue;
    }
    if (std::next(one) != captures_.end()) {
      finish_updates();  // of the last one
      replayed_last_ = false;
      std::rotate(one, std::next(one), captures_.end());
    }
    return &captures_.back();
  }
  return nullptr;
}

std::string Training::kind_of(const StepRows& rows) const {
  std::string text = fmt::format("{}", rows.micro_batches);
  for (const auto& [name, x] : rows.tensors) {
    text += fmt::format(" {}{}", name_of(x.dtype()), to_string(x.shape()));
  }
  for (const bool is_trained : trained()) {
    text += is_trained ? '1' : '0';
  }
  text += fmt::format(" {}", fmt::join(missed_updates(), " "));
  return text;
}

void Training::gather_inputs(const StepRows& rows, Capture& capture, Capture::PartNumber number) {
  const std::vector<nn::ParameterPointer>& parameters = optimizer_->parameters();
  const bool same = std::ranges::equal(parameters, capture.parameters,
                                       [](const nn::ParameterPointer& now, const Tensor& before) {
                                         return now->value.same_as(before);
                                       });
  if (!same || !replayed_last_) {  // otherwise only the rows are others
    const bool kept = std::ranges::any_of(
        parameters, [](const nn::ParameterPointer& p) { return p->places.gradient != nullptr; });
    if (kept) {
      rest_captures();  // what they hold of gradients is free to be given again
    }
    capture.parameters.clear();
    for (const nn::ParameterPointer& parameter : parameters) {
      capture.parameters.push_back(parameter->value);
    }
    for (ProgramPart& part : capture.parts) {
      part.given.clear();
    }
    capture.inputs = inputs();
  }
  ProgramPart& part = capture.parts[number];
  if (number != capture.running) {
    capture.parts[capture.running].executor->rest();  // their memory would be there twice
    capture.running = number;
  }
  if (part.given.empty()) {
    std::map<std::string, Tensor> all = capture.inputs;
    all.insert(rows.tensors.begin(), rows.tensors.end());
    if (number != Capture::whole_step) {
      take_pending(capture);
      all.insert(capture.pending.begin(), capture.pending.end());
    }
    part.given = part.executor->arranged(all);
    return;
  }
  std::size_t at = 0;
  for (const auto& [name, unused] : part.executor->program().inputs) {
    if (const auto row = rows.tensors.find(name); row != rows.tensors.end()) {
      part.given[at] = row->second;
    }
    ++at;
  }
}

StepResult Training::replay_step(const StepBatch& batch, const StepRows& rows, Capture& capture,
                                 StepVariables variables) {
  if (!replayed_last_) {  // what styles derive from parameters is an input of the program
    finish_updates();
    plan_.after_optimizer();
  }
  optimizer_->prepare_state();
  const MemoryScope scope(MemoryCategory::activation);
  const bool leaves = capture.leaves() && !batch.last_train_step;
  const Capture::PartNumber number = left_    ? (leaves ? Capture::middle : Capture::last)
                                     : leaves ? Capture::first
                                              : Capture::whole_step;
  if (left_) {
    check_untouched(capture);
    add_before(variables, *left_);
  }
  gather_inputs(rows, capture, number);
  Executor& executor = *capture.parts[number].executor;
  executor.begin_in_order(capture.parts[number].given);
  finisher_.count_step();
  run_phase("replayed gradients", [&] { run_gradients(executor, variables); });
  const StepResult result =
      checked(batch, executor.output("loss").item(), executor.output(norm_output()).item());
  executor.run("free", variables);
  ++counts_.replayed;
  replayed_last_ = true;
  if (result.skipped) {
    executor.end();
    count_step(batch, true);
    return result;
  }
  set_update(variables, result.lr, grad_scale(result));
  if (!leaves) {
    run_phase("replayed update", [&] { executor.run("update", variables); });
  }
  executor.end();
  if (leaves) {
    leave_update(capture, variables);
  }
  optimizer_->count_step(capture.updated);
  count_step(batch, false);
  return result;
}

}  // namespace tessera
