// Guards, updates, inputs and sections of captured steps.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.device;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import :capture_parts;
import :step_plan;

namespace tessera {

std::string text_of(const StepGuards& guards) {
  std::string text;
  for (const auto& [name, value] : guards) {
    text += fmt::format(" {}={}", name, value);
  }
  return text;
}

void refuse_untransformed(const graph::ExecutionOptions& execution, const char* what,
                          const std::string& why) {
  if (const graph::Change* const change = graph::changes_bits(execution)) {
    fail({.thing = fmt::format("change '{}'", change->name),
          .wrong = fmt::format("this {} has no program that it could change ({})", what, why),
          .advice = "capture the step ahead, take steps of one kind, or leave the change "
                    "out"});
  }
}

void record_inputs(Recorder& recorder, const StepInputs& inputs) {
  for (const auto& [name, input] : inputs) {
    recorder.input(name, input.value, input.role, input.category, input.micro_batch);
  }
}

std::vector<Tensor> arranged_inputs(const Executor& executor, const StepInputs& all,
                                    bool transformed) {
  const std::map<std::string, ProgramInput>& inputs = executor.program().inputs;
  std::map<std::string, Tensor> given;
  for (const auto& [name, input] : all) {
    const bool may_be_unused = transformed || input.role == Role::optimizer_state;
    if (!may_be_unused || inputs.contains(name)) {
      given.emplace_hint(given.end(), name, input.value);
    }
  }
  return executor.arranged(given);
}

namespace {

/// As reports name it: "all_gather", "send".
std::string operation_of(const Program& program, const Instruction& collective) {
  if (const std::optional<graph::ProgramMessage> message = graph::message_of(program, collective)) {
    return message->sends ? "send" : "receive";
  }
  return std::string(name_of(collective.op->communicates));
}

}  // namespace

void run_section(Executor& executor, SectionKind section, const StepVariables& variables) {
  executor.run(section, variables);
  if (!communication_reported()) {
    return;
  }
  const Program& program = executor.program();
  const auto found = std::ranges::find(program.sections, section, &Section::kind);
  for (const Instruction& i : found->instructions) {
    if (!graph::is_collective(i) || i.op->communicates == Communicates::waits ||
        graph::is_alone(i)) {
      continue;
    }
    const ProgramScope& scope = program.scopes[i.scope];
    record_communication({.operation = operation_of(program, i),
                          .axis = to_string(CallGroup{.ranks = graph::group_of(i)->ranks}),
                          .bytes = graph::received_bytes(program, i),
                          .where = "a captured step",
                          .module = scope.module,
                          .backward = scope.phase == Phase::backward});
  }
}

}  // namespace tessera
