// Which program a step has, and how steps are recorded and replayed.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.device;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :meta_step;
import :capture_parts;
import :captured_steps;
import :eager_steps;
import :made_tensors;
import :micro_batches;
import :step_capture;
import :step_plan;
import :step_objects;
import :verification;

namespace tessera {

namespace {

/// Whether all ranks say so. All call it together.
bool all_say(bool mine) {
  collective::World& world = collective::World::current();
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  const std::int64_t own = mine ? 1 : 0;
  world.everyone().all_gather(&own, all.data(), 1, DType::i64);
  return std::ranges::count(all, 0) == 0;
}

}  // namespace

CapturedSteps::CapturedSteps(EagerSteps& steps)
    : steps_(steps), programs_([this] {
        finish_updates();
        replayed_last_ = false;
      }) {}

CapturedSteps::~CapturedSteps() = default;

void CapturedSteps::set_enabled(bool enabled, const graph::ExecutionOptions& execution) {
  graph::check(execution);
  finish_updates();
  enabled_ = enabled;
  execution_ = execution;
  verify_ = graph::verified_every(execution);
  added_.clear();
  programs_.clear();
  programs_.set_comparing(execution.compares_recordings);
  replayed_last_ = false;
}

void CapturedSteps::set_program(Program program) {
  graph::AddedState kept = std::exchange(added_, {});
  set_enabled(true, execution_);
  added_ = std::move(kept);
  programs_.add(
      std::move(program),
      [&](Program whole) { return capture_of(std::move(whole), state().before_updates()); },
      "before the first step");
}

std::string CapturedSteps::capture_ahead(const std::function<Program()>& make) {
  Program program;
  on_meta(current_rank(), [&] { program = make(); });
  std::string reads = reads_values(program);
  if (reads.empty()) {
    set_program(std::move(program));
  }
  return reads;
}

Program CapturedSteps::capture(const std::function<void()>& step) {
  require(enabled_, "training: captured().capture() before set_enabled(true)");
  const Program& program = programs_.capture(step);
  if (!steps_.order->is_planned()) {
    fail({.thing = "captured steps",
          .wrong = "the model is in stages, and what its stages tell each other was not planned",
          .advice = "before the capture, take a step of the ranks of each place on the meta device "
                    "with one StageStates, in order, until it is exact()"});
  }
  return program;
}

std::unique_ptr<CapturedSteps::Capture> CapturedSteps::capture_of(Program program,
                                                                  StepState state) {
  auto capture = std::make_unique<Capture>();
  capture->state = std::move(state);
  if (verify_ > 0 && needs_program_.empty()) {
    capture->recorded = program;
  }
  capture->part(Part::whole_step).executor =
      graph::make_executor(std::move(program), execution_, &added_);
  add_parts(*capture);
  for (const Capture::PartProgram& part : capture->parts) {
    if (part.executor && steps_.plan.stages() != nullptr) {
      part.executor->watch_parts([this](const std::string& action) {
        collective::World::current().set_progress(steps_.done, action);
      });
    }
  }
  capture->updated = steps_.objects.updated_by(capture->program());
  const Device device = steps_.optimizer->parameters().front()->value.device();
  for (auto& [name, value] : added_) {
    value = ops::to_device(value, device);
  }
  return capture;
}

StepResult CapturedSteps::step(const StepBatch& batch, const StepFunctions& functions) {
  guards_ = functions.guards;
  const Rows rows = load_rows(batch, functions);
  const StepState before = state();
  StepResult result;
  // A verified step communicates twice, so ranks agree: one that has no program takes it once.
  bool is_open = verify_ > 0 && needs_program_.empty() && (steps_.done + 1) % verify_ == 0;
  const auto verifies = [&](bool replays) {
    if (!std::exchange(is_open, false)) {
      return false;
    }
    const bool is_planned = steps_.optimizer->parameters().front()->value.is_meta();
    const int ranks = is_planned ? 1 : collective::World::current().size();
    const bool all = steps_.plan.stages() != nullptr || steps_.plan.mesh().size() == ranks;
    return ranks > 1 && all ? all_say(replays) : replays;
  };
  const CapturedFunction::Call call{
      .misfit =
          [&](const CapturedFunction::Entry& entry) {
            return misfit(static_cast<const Capture&>(entry), rows, before);
          },
      .kind = [&] { return kind_of(rows, before); },
      .replay =
          [&](CapturedFunction::Entry& entry) {
            auto& capture = static_cast<Capture&>(entry);
            result = verifies(true) ? verified(batch, functions, rows, capture)
                                    : replay(batch, rows, capture);
          },
      .before_taking =
          [&](const std::string& why) {
            verifies(false);
            refuse_untransformed(execution_, "step", why);
            if (!needs_program_.empty()) {
              fail({.thing = "training",
                    .wrong = fmt::format("this step has no program ({})", why),
                    .advice = needs_program_});
            }
            finish_updates();
            replayed_last_ = false;
          },
      .take =
          [&] {
            StepPlan plan = steps_.plan_of(batch, functions.guards);
            result = steps_.take(batch, functions, plan);
            return std::string();
          },
      .record =
          [&] {
            std::optional<Recording> recording;
            result = record(batch, functions, recording);
            return recording;
          },
      .make = [&](Program program) { return capture_of(std::move(program), before); },
      .refused = steps_.objects.held_gradient()};
  programs_.call(call);
  return result;
}

StepResult CapturedSteps::record(const StepBatch& batch, const StepFunctions& functions,
                                 std::optional<Recording>& recording) {
  steps_.optimizer->prepare_state();  // what the step makes does not outlive it
  Recorder recorder;
  StepPlan plan = steps_.plan_of(batch, functions.guards, &recorder);
  record_inputs(recorder, inputs());
  const std::vector<Tensor> held = steps_.objects.held();
  MadeTensors made;
  StepFunctions noted = functions;
  noted.rows = [&](const BatchPart& part) {
    return made.unseen([&] { return functions.rows(part); });
  };
  StepResult result;
  {
    const ModeScope scope(ModeLevel::below_distribution, made);
    result = steps_.take(batch, noted, plan);
  }
  steps_.objects.check_kept(held);
  made.check_gone({});
  if (!result.skipped) {  // otherwise it has no update to record
    recording = recorder.finish(plan.variables());
  }
  return result;
}

StepState CapturedSteps::state() const {
  return StepState(steps_.objects.models(), steps_.objects.optimizers(),
                   steps_.done - steps_.skipped);
}

StepInputs CapturedSteps::inputs() const {
  StepInputs all = steps_.objects.inputs(added_);
  if (steps_.scaler) {
    all.emplace(scaler_input, StepInput{.value = steps_.scale_input, .role = Role::scaler_factor});
  }
  return all;
}

void CapturedSteps::check_inputs(const Program& program) const {
  const StepInputs all = inputs();
  for (const auto& [name, input] : program.inputs) {
    const ProgramTensor& x = program.tensors[input.tensor];
    const auto found = all.find(name);
    const bool is_own = input.role != Role::rows && input.role != Role::transform_state;
    if (is_own && (found == all.end() || !(found->second.value.shape() == x.shape) ||
                   found->second.value.dtype() != x.dtype)) {
      fail_input({.thing = fmt::format("captured step: input '{}'", name),
                  .wrong = found == all.end() ? "the model as it is written has none of this name"
                                              : "the model as it is written has another one",
                  .expected = found == all.end()
                                  ? std::string()
                                  : fmt::format("{}{}", name_of(found->second.value.dtype()),
                                                to_string(found->second.value.shape())),
                  .got = fmt::format("{}{}", name_of(x.dtype), to_string(x.shape)),
                  .advice =
                      "give what replaces a module parameters of the same names, shapes and types; "
                      "a change may add state"});
    }
  }
}

CapturedSteps::Rows CapturedSteps::load_rows(const StepBatch& batch,
                                             const StepFunctions& functions) {
  const RowDivision batch_rows = steps_.rows_of(batch);
  Rows rows{.micro_batches = batch_rows.micro_batches()};
  batch_rows.each(steps_.done, [&](const MicroPart& part) {
    add_rows(rows.tensors, static_cast<int>(part.number), functions.rows(part.batch));
  });
  return rows;
}

std::string CapturedSteps::misfit(const Capture& capture, const Rows& rows,
                                  const StepState& state) const {
  if (std::string other = state.misfit(capture.state, capture.updated); !other.empty()) {
    return other;
  }
  if (std::string other = capture.part(Part::whole_step).executor->refusal(guards_);
      !other.empty()) {
    return other;
  }
  const Program& program = capture.program();
  std::set<int> recorded;  // micro-batches
  for (const auto& [name, input] : program.inputs) {
    if (input.role != Role::rows) {
      continue;
    }
    recorded.insert(input.micro_batch);
    const auto found = rows.tensors.find(name);
    const ProgramTensor& expected = program.tensors[input.tensor];
    if (found != rows.tensors.end() && (!(expected.shape == found->second.value.shape()) ||
                                        expected.dtype != found->second.value.dtype())) {
      return fmt::format("the rows have another shape ({}) than the recorded ones",
                         to_string(found->second.value.shape()));
    }
  }
  if (!recorded.empty() && static_cast<std::int64_t>(recorded.size()) != rows.micro_batches) {
    return fmt::format("the step has {} micro-batches and the recorded one had {}",
                       rows.micro_batches, recorded.size());
  }
  return "";
}

std::string CapturedSteps::kind_of(const Rows& rows, const StepState& state) const {
  std::string text = fmt::format("{}", rows.micro_batches);
  for (const auto& [name, x] : rows.tensors) {
    text += fmt::format(" {}{}", name_of(x.value.dtype()), to_string(x.value.shape()));
  }
  return text + text_of(guards_) + state.text();
}

void CapturedSteps::gather_inputs(const Rows& rows, Capture& capture, Part which, bool only_rows) {
  const std::vector<nn::ParameterPointer>& parameters = steps_.optimizer->parameters();
  const bool same = std::ranges::equal(parameters, capture.parameters,
                                       [](const nn::ParameterPointer& now, const Tensor& before) {
                                         return now->value.same_as(before);
                                       });
  if (!same || !only_rows) {
    const bool kept = std::ranges::any_of(parameters, [](const nn::ParameterPointer& p) {
      return p->attached<nn::MemoryPlaces>().gradient != nullptr;
    });
    if (kept) {
      release_memory();  // what they hold of gradients is free to be given again
    }
    capture.parameters.clear();
    for (const nn::ParameterPointer& parameter : parameters) {
      capture.parameters.push_back(parameter->value);
    }
    for (Capture::PartProgram& part : capture.parts) {
      part.given.clear();
    }
    capture.inputs = inputs();
  }
  Capture::PartProgram& part = capture.part(which);
  if (which != capture.running) {
    capture.part(capture.running).executor->release_memory();  // their memory would be there twice
    capture.running = which;
  }
  if (part.given.empty()) {
    StepInputs all = capture.inputs;
    all.insert(rows.tensors.begin(), rows.tensors.end());
    if (which != Part::whole_step) {
      take_pending(capture);
      add_values(all, capture.pending, Role::pending);
    }
    part.given = arranged_inputs(*part.executor, all, !execution_.transforms.empty());
    return;
  }
  std::size_t at = 0;
  for (const auto& [name, unused] : part.executor->program().inputs) {
    if (const auto row = rows.tensors.find(name); row != rows.tensors.end()) {
      part.given[at] = row->second.value;
    }
    ++at;
  }
}

StepResult CapturedSteps::replay(const StepBatch& batch, const Rows& rows, Capture& capture,
                                 bool counted) {
  const bool continues = std::exchange(replayed_last_, false);  // nothing else has written since
  if (!continues) {  // what styles derive from parameters is an input of the program
    finish_updates();
    steps_.plan.after_optimizer();
  }
  steps_.optimizer->prepare_state();
  StepPlan plan = steps_.plan_of(batch, guards_);
  StepVariables variables = plan.variables();  // and those of the step before
  const MemoryScope scope(MemoryCategory::activation);
  const bool leaves = capture.leaves() && !batch.last_train_step;
  const Part which = capture.left ? (leaves ? Part::middle : Part::last)
                     : leaves     ? Part::first
                                  : Part::whole_step;
  if (capture.left) {
    check_untouched(capture);
    add_before(variables, *capture.left);
  }
  gather_inputs(rows, capture, which, continues);
  Executor& executor = *capture.part(which).executor;
  executor.begin_in_order(capture.part(which).given);
  // Nothing of the training moves before the end: a guard may give the replay up.
  const auto ended = [&](const StepResult& result) {
    executor.end();
    if (counted) {
      steps_.finisher.count_step();
      replayed_last_ = true;
      steps_.count_step(batch, result);
    }
  };
  run_phase("replayed gradients", [&] { run_gradients(capture, executor, variables); });
  const StepResult result = steps_.checked(batch, executor.output(loss_output).item(),
                                           executor.output(steps_.norm_output()).item(),
                                           WholeSums::measured_in(executor));
  run_section(executor, SectionKind::free, variables);
  if (result.skipped) {
    ended(result);
    return result;
  }
  plan.know(steps_.before_update(result));  // before the scaler's factor changes
  variables.numbers.insert(plan.variables().numbers.begin(), plan.variables().numbers.end());
  if (!leaves) {
    run_phase("replayed update", [&] { run_section(executor, SectionKind::update, variables); });
  }
  ended(result);
  if (leaves) {
    leave_update(capture, plan.variables());
  }
  if (counted) {
    steps_.optimizer->count_step(capture.updated[0]);
  }
  return result;
}

StepResult CapturedSteps::verified(const StepBatch& batch, const StepFunctions& functions,
                                   const Rows& rows, Capture& capture) {
  finish_updates();
  const auto existing = [&] {
    StepInputs all = inputs();
    all.insert(rows.tensors.begin(), rows.tensors.end());
    return all;
  };
  const auto with_result = [&](const StepResult& result) {
    StepInputs all = existing();
    const auto add = [&all](const std::string& name, double value) {
      all.emplace(name, StepInput{.value = full({}, value, DType::f64)});
    };
    add(loss_output, result.loss);
    add(steps_.norm_output(), result.grad_norm);
    for (std::size_t i = 0; i < result.measured.size(); ++i) {
      add(measured_output(i), result.measured[i]);
    }
    return copied_values(all);
  };
  steps_.optimizer->prepare_state();
  StepBatch whole = batch;
  whole.last_train_step = true;  // it leaves nothing to the next one
  const NamedValues before = copied_values(existing());
  const std::map<std::string, RandomStream> streams = random_state();
  const NamedValues replayed = with_result(replay(whole, rows, capture, false));
  release_memory();
  write_values(existing(), before);
  set_random_state(streams);
  std::optional<Recording> again;
  const StepResult result = record(batch, functions, again);
  check_same_bits(*capture.recorded, replayed, with_result(result), std::move(again));
  ++programs_.counts().verified;
  return result;
}

const Program* CapturedSteps::program() const {
  return programs_.last() == nullptr ? nullptr : &programs_.last()->program();
}

CapturedSteps::Capture* CapturedSteps::last() const {
  return static_cast<Capture*>(programs_.last());
}

void CapturedSteps::abandon() noexcept {
  replayed_last_ = false;
  if (Capture* const capture = last()) {
    capture->abandon();
  }
}

void CapturedSteps::release_memory() noexcept {
  programs_.release_memory();
  replayed_last_ = false;
}

void CapturedSteps::before_load() {
  if (!interrupted_) {
    finish_updates();  // where the load is refused, the training is as it was
  }
}

void CapturedSteps::expect_added(const std::string& name, const Dims& shape, DType dtype) {
  const Device device = steps_.optimizer->parameters().front()->value.device();
  added_.try_emplace(name, zeros(shape, dtype, device));
}

void CapturedSteps::after_load() {
  replayed_last_ = false;
  interrupted_ = false;
}

}  // namespace tessera
