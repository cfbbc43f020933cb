// Steps that are recorded, and the programs that they are replayed from.
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
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.record;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :capture_parts;
import :step_inputs;

namespace tessera {
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
  check_guards(program);
  add_capture(std::move(program), std::vector<std::int64_t>(optimizer_->parameters().size(), 0),
              ahead_of_steps);
}

std::string Training::capture_ahead(const std::function<Program()>& make) {
  Program program;
  on_meta(current_rank(), [&] { program = make(); });
  std::string reads = reads_values(program);
  if (reads.empty()) {
    set_program(std::move(program));
  }
  return reads;
}

Program Training::capture(const std::function<void()>& step) {
  require(replays_, "training: capture() without set_replay(true)");
  compares_ = true;
  while (captures_.empty()) {
    step();
  }
  compares_ = false;
  return captures_.back().whole().program();
}

void Training::add_capture(Program program, std::vector<std::int64_t> missed,
                           const std::string& reason) {
  finish_updates();
  Capture capture{.trained = trained(),
                  .modules = module_forms(),
                  .missed = std::move(missed),
                  .guards = guards_of(program)};
  if (captures_.size() >= most_captures) {
    captures_.erase(captures_.begin());  // its memory is free before the new one's is taken
    ++counts_.evicted;
  }
  capture.parts[Capture::whole_step].executor =
      graph::make_executor(std::move(program), execution_, &added_);
  add_parts(capture);
  capture.updated = updated_by(capture.whole().program(), 0, optimizer_->parameters(), input_of);
  const Device device = optimizer_->parameters().front()->value.device();
  for (auto& [name, value] : added_) {
    value = ops::to_device(value, device);
  }
  captures_.push_back(std::move(capture));
  count_capture(counts_, reason);
  replayed_last_ = false;
}

std::optional<StepResult> Training::replayed(const StepBatch& batch, const StepRows& rows,
                                             Attempt& attempt) {
  std::string given_up;
  for (std::size_t tried = 0; tried < most_captures; ++tried) {
    Capture* const capture = capture_of(rows, attempt.known);
    if (capture == nullptr) {
      break;
    }
    StepVariables variables = variables_of(batch, &capture->whole().program());
    counts_.refusal = capture->whole().refusal(variables);
    if (!counts_.refusal.empty()) {
      attempt.refused = true;
      return std::nullopt;
    }
    try {
      return replay_step(batch, rows, *capture, std::move(variables));
    } catch (const GuardFailed& failed) {  // nothing was changed
      attempt.known = path_of(failed, capture->guards);
      given_up = guard_in_words(capture->guards[failed.number()], failed.now());
      ++counts_.given_up;
      capture->parts[capture->running].executor->abandon();
      rest_captures();
    }
  }
  counts_.refusal = given_up.empty() ? counts_.refusal : given_up;
  return std::nullopt;
}

StepResult Training::record_step(const StepBatch& batch, const StepFunctions& functions) {
  guards_ = functions.guards;
  const StepRows rows = load_rows(batch, functions);
  Attempt attempt;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    if (parameter->value.grad()) {
      counts_.refusal = held_gradient(*parameter);
      attempt.refused = true;
      break;
    }
  }
  if (attempt.refused) {
    // Taken as always.
  } else if (const std::optional<StepResult> result = replayed(batch, rows, attempt)) {
    return *result;
  }
  if (!execution_.transforms.empty()) {
    fail({.thing = fmt::format("transformation '{}'", execution_.transforms.front().name),
          .wrong = fmt::format("this step has no program that it could change ({})",
                               counts_.refusal.empty() ? "none was set" : counts_.refusal),
          .advice = "take steps of one kind, or leave the transformation out"});
  }
  if (!needs_program_.empty()) {
    fail({.thing = "training",
          .wrong = fmt::format("this step has no program ({})",
                               counts_.refusal.empty() ? "none was set" : counts_.refusal),
          .advice = needs_program_});
  }
  finish_updates();
  rest_captures();
  const std::string kind = kind_of(rows);
  std::int64_t& eager = taken_of(kinds_, kind + text_of(attempt.known));
  if (!attempt.refused && eager >= steps_before) {
    return capture_step(batch, functions, kind);
  }
  const StepResult result = take_step(batch, functions, nullptr);
  ++counts_.eager;
  ++eager;
  return result;
}

StepResult Training::capture_step(const StepBatch& batch, const StepFunctions& functions,
                                  const std::string& kind) {
  optimizer_->prepare_state();  // what the step makes does not outlive it
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
  set_update(variables, result.lr,
             optim::clip_factor(result.grad_norm, clipping_.max_norm) / scale_of_step);
  Recording recording = recorder.finish(variables);
  ++counts_.recorded;
  const bool compares = compares_ || execution_.compares_recordings;
  // What guards have read is part of the kind.
  const std::string whole_kind = kind + text_of(guards_of(recording.program));
  const auto compared = recorded_.find(whole_kind);
  if (compares && compared == recorded_.end()) {
    keep_recording(recorded_, whole_kind, std::move(recording));
    return result;
  }
  add_capture(compares ? compared_program(compared->second, std::move(recording))
                       : program_of(std::move(recording)),
              missed_updates(), captures_.empty() ? first_capture : counts_.refusal);
  return result;
}

}  // namespace tessera
