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
  steps_.clear();
  steps_.set_comparing(execution.compares_recordings);
  replayed_last_ = false;
}

void Training::set_program(Program program) {
  graph::AddedState kept = std::exchange(added_, {});
  set_replay(true, execution_);
  added_ = std::move(kept);
  steps_.add(
      std::move(program),
      [&](Program whole) {
        return capture_of(std::move(whole),
                          std::vector<std::int64_t>(optimizer_->parameters().size(), 0));
      },
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
  return steps_.capture(step);
}

std::unique_ptr<Training::Capture> Training::capture_of(Program program,
                                                        std::vector<std::int64_t> missed) {
  auto capture = std::make_unique<Capture>();
  capture->trained = trained();
  capture->modules = module_forms();
  capture->missed = std::move(missed);
  capture->parts[Capture::whole_step].executor =
      graph::make_executor(std::move(program), execution_, &added_);
  add_parts(*capture);
  capture->updated = updated_by(capture->program(), 0, optimizer_->parameters(), input_of);
  const Device device = optimizer_->parameters().front()->value.device();
  for (auto& [name, value] : added_) {
    value = ops::to_device(value, device);
  }
  return capture;
}

StepResult Training::record_step(const StepBatch& batch, const StepFunctions& functions) {
  guards_ = functions.guards;
  const StepRows rows = load_rows(batch, functions);
  const ModuleForms modules = module_forms();
  StepResult result;
  CapturedFunction::Call call{
      .misfit =
          [&](const CapturedFunction::Entry& entry) {
            return misfit(static_cast<const Capture&>(entry), rows, modules);
          },
      .kind = [&] { return kind_of(rows, modules); },
      .replay =
          [&](CapturedFunction::Entry& entry) {
            result = replay_step(batch, rows, static_cast<Capture&>(entry));
          },
      .before_taking =
          [&](const std::string& why) {
            refuse_untransformed(execution_, "step", why);
            if (!needs_program_.empty()) {
              fail({.thing = "training",
                    .wrong = fmt::format("this step has no program ({})", why),
                    .advice = needs_program_});
            }
            finish_updates();
            replayed_last_ = false;
          },
      .take = [&] { result = take_step(batch, functions, nullptr); },
      .record =
          [&] {
            std::optional<Recording> recording;
            result = taken_recorded(batch, functions, recording);
            return recording;
          },
      .make = [&](Program program) { return capture_of(std::move(program), missed_updates()); },
      .refused = held_gradient(optimizer_->parameters())};
  steps_.call(call);
  return result;
}

StepResult Training::taken_recorded(const StepBatch& batch, const StepFunctions& functions,
                                    std::optional<Recording>& recording) {
  optimizer_->prepare_state();  // what the step makes does not outlive it
  StepVariables variables = variables_of(batch);
  Recorder recorder;
  std::map<std::string, MemoryCategory> categories;
  for (const nn::ParameterPointer& parameter : optimizer_->parameters()) {
    categories[parameter_input(parameter->name)] = category_of_parameter(*parameter);
  }
  record_inputs(recorder, inputs(), categories);
  const double scale_of_step = scale();
  const StepResult result = take_step(batch, functions, &recorder);
  if (!result.skipped) {  // otherwise it has no update to record
    set_update(variables, result.lr,
               optim::clip_factor(result.grad_norm, clipping_.max_norm) / scale_of_step);
    recording = recorder.finish(variables);
  }
  return result;
}

}  // namespace tessera
