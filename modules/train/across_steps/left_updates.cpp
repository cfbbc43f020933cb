// Updates that replayed steps leave to the next one.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.execute;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import :capture_parts;
import :captured_steps;
import :eager_steps;
import :step_capture;
import :step_plan;

namespace tessera {
namespace {

std::uint64_t version_of(const nn::Parameter& parameter) {
  return local_of(parameter.value).storage().version();
}

}  // namespace

void CapturedSteps::add_parts(Capture& capture) {
  programs_.counts().not_left.clear();
  if (!execution_.across_steps) {
    return;
  }
  graph::AcrossSteps all = graph::across_steps(capture.program(), execution_);
  programs_.counts().not_left = all.refusal;
  if (!all.refusal.empty()) {
    return;
  }
  const auto set = [&](Part part, Program& program) {
    capture.part(part).executor = graph::executor_of(std::move(program), execution_);
  };
  set(Part::first, all.first);
  set(Part::middle, all.middle);
  set(Part::last, all.last);
  set(Part::update, all.update);
}

void CapturedSteps::Capture::release_memory() noexcept {
  for (PartProgram& part : parts) {
    if (part.executor) {
      part.executor->release_memory();
    }
    part.given.clear();
  }
  if (!left) {
    pending.clear();
    inputs.clear();
  }
}

void CapturedSteps::add_before(StepVariables& variables, const StepVariables& before) {
  for (const auto& [name, number] : before.numbers) {
    variables.numbers[graph::before_name(name)] = number;
  }
  for (const auto& [name, count] : before.counts) {
    variables.counts[graph::before_name(name)] = count;
  }
}

void CapturedSteps::take_pending(Capture& capture) {
  const MemoryScope scope(MemoryCategory::gradient);
  const Program& program = capture.part(Part::first).executor->program();
  const ByTensor<bool> peers_read = read_by_peers(program);
  const Device device = steps_.optimizer->parameters().front()->value.device();
  for (const auto& [name, input] : program.inputs) {
    if (input.role != Role::pending || capture.pending.contains(name)) {
      continue;
    }
    std::optional<PeersReadScope> peers;
    if (peers_read[input.tensor]) {
      peers.emplace();
    }
    const ProgramTensor& x = program.tensors[input.tensor];
    capture.pending[name] = empty(x.shape, x.dtype, device);
  }
}

void CapturedSteps::run_gradients(Capture& capture, Executor& executor,
                                  const StepVariables& variables) {
  // Until the section has ended, nobody knows which parameters are updated.
  interrupted_ = std::exchange(capture.left, std::nullopt).has_value();
  run_section(executor, SectionKind::gradients, variables);
  interrupted_ = false;
}

void CapturedSteps::leave_update(Capture& capture, StepVariables variables) {
  capture.left = std::move(variables);
  capture.versions.clear();
  for (const nn::ParameterPointer& parameter : steps_.optimizer->parameters()) {
    capture.versions.push_back(version_of(*parameter));
  }
  ++programs_.counts().left;
}

void CapturedSteps::check_untouched(const Capture& capture) const {
  const std::vector<nn::ParameterPointer>& parameters = steps_.optimizer->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i]->value.same_as(capture.parameters[i]) ||
        version_of(*parameters[i]) != capture.versions[i]) {
      fail({.thing = "training",
            .wrong = "'" + parameters[i]->name +
                     "' was changed while its update was left to the next step",
            .advice = "call captured().finish_updates() before you change parameters, or set "
                      "last_train_step"});
    }
  }
}

bool CapturedSteps::has_left_updates() const { return last() != nullptr && last()->left; }

void CapturedSteps::finish_updates() {
  if (interrupted_) {
    fail({.thing = "training",
          .wrong = "an error interrupted the update that a step had left to the next one",
          .advice = "load a checkpoint; " + steps_.last_checkpoint()});
  }
  if (!has_left_updates()) {
    return;
  }
  Capture& capture = *last();
  check_untouched(capture);
  StepVariables variables;
  add_before(variables, *capture.left);
  StepInputs all = capture.inputs;
  add_values(all, capture.pending, Role::pending);
  Executor& executor = *capture.part(Part::update).executor;
  const MemoryScope scope(MemoryCategory::activation);
  capture.part(capture.running).executor->release_memory();  // there is no memory for both
  executor.begin_in_order(arranged_inputs(executor, all, true));
  interrupted_ = true;
  capture.left.reset();
  run_phase("replayed update", [&] { run_section(executor, SectionKind::update, variables); });
  executor.end();
  executor.release_memory();
  interrupted_ = false;
}

}  // namespace tessera
