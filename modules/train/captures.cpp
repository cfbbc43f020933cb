// Guards, updates and modules of captured steps.
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
#include <tessera/printable.hpp>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.device;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import :capture_parts;
import :step_inputs;

namespace tessera {

std::string other_guard(const Program& program, const StepGuards& guards) {
  for (const auto& [name, value] : guards) {
    const auto was = program.guards.find(name);
    if (was == program.guards.end()) {
      return fmt::format("guard '{}' is {}, and the program has none of this name", name,
                         printable(value));
    }
    if (was->second != value) {
      return guard_in_words({.name = name, .value = was->second}, value);
    }
  }
  for (const auto& [name, value] : program.guards) {
    if (!guards.contains(name)) {
      return fmt::format("guard '{}' is missing, and was {}", name, printable(value));
    }
  }
  return {};
}

std::string text_of(const StepGuards& guards) {
  std::string text;
  for (const auto& [name, value] : guards) {
    text += fmt::format(" {}={}", name, value);
  }
  return text;
}

std::vector<std::size_t> updated_by(
    const Program& program, int optimizer, const std::vector<nn::ParameterPointer>& parameters,
    const std::function<std::string(const nn::ParameterPointer&)>& input_of) {
  std::set<std::string> inputs;
  for (const ProgramUpdate& update : program.updates) {
    if (update.optimizer == optimizer) {
      inputs.insert(update.input);
    }
  }
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (inputs.contains(input_of(parameters[i]))) {
      numbers.push_back(i);
    }
  }
  return numbers;
}

void record_updates(Recorder& recorder, int optimizer, std::span<const std::size_t> updated,
                    const std::vector<nn::ParameterPointer>& parameters,
                    const std::function<std::string(const nn::ParameterPointer&)>& input_of) {
  for (const std::size_t i : updated) {
    recorder.update(optimizer, input_of(parameters[i]));
  }
}

ModuleForms forms_of(std::span<nn::Module* const> roots) {
  ModuleForms forms;
  for (nn::Module* const root : roots) {
    for (const nn::Module* const module : nn::all_modules(*root)) {
      std::uint64_t held = 0;
      const auto hold = [&](const auto& list) {
        for (const auto& [name, pointer] : list) {
          held = hash_combine(held, reinterpret_cast<std::uintptr_t>(pointer.get()));
        }
      };
      hold(module->parameters());
      hold(module->buffers());
      forms.push_back({.module = module,
                       .training = module->is_training(),
                       .hooks = module->hook_count(),
                       .held = held});
    }
  }
  return forms;
}

std::string other_modules(const ModuleForms& recorded, const ModuleForms& now) {
  for (std::size_t i = 0; i < std::min(recorded.size(), now.size()); ++i) {
    const ModuleForm& was = recorded[i];
    const ModuleForm& is = now[i];
    const char* const what = was.module != is.module       ? "is another one"
                             : was.training != is.training ? "has another training mode"
                             : was.hooks != is.hooks       ? "has other hooks"
                             : was.held != is.held         ? "has other parameters or buffers"
                                                           : nullptr;
    if (what != nullptr) {
      return fmt::format("module '{}' {} than when the step was recorded", is.module->name(), what);
    }
  }
  return recorded.size() == now.size() ? std::string()
                                       : "there are other modules than when the step was recorded";
}

std::string text_of(const ModuleForms& forms) {
  std::uint64_t hash = 0;
  for (const ModuleForm& form : forms) {
    hash = hash_combine(hash, reinterpret_cast<std::uintptr_t>(form.module));
    hash = hash_combine(hash, 2 * form.hooks + (form.training ? 1 : 0));
    hash = hash_combine(hash, form.held);
  }
  return fmt::format(" modules {:x}", hash);
}

std::string held_gradient(const nn::Parameter& parameter) {
  return parameter.value.grad() ? fmt::format("'{}' has a gradient before the step", parameter.name)
                                : std::string();
}

void refuse_untransformed(const graph::ExecutionOptions& execution, const char* what,
                          const std::string& why) {
  if (!execution.transforms.empty()) {
    fail({.thing = fmt::format("transformation '{}'", execution.transforms.front().name),
          .wrong = fmt::format("this {} has no program that it could change ({})", what, why),
          .advice = "capture the step ahead, take steps of one kind, or leave the transformation "
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
    record_communication({.operation = std::string(name_of(i.op->communicates)),
                          .axis = graph::ranks_of(i),
                          .bytes = graph::received_bytes(program, i),
                          .where = "a captured step",
                          .module = scope.module,
                          .backward = scope.phase == Phase::backward});
  }
}

}  // namespace tessera
