module;
#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string>
module tessera.train;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.nn;
import tessera.optim;
import :step_inputs;

namespace tessera {

std::string parameter_input(const std::string& name) { return "parameter." + name; }
std::string state_input(const std::string& name) { return "optimizer." + name; }

std::string input_of(const nn::ParameterPointer& parameter) {
  return parameter_input(parameter->name);
}

void add_parameter(StepInputs& all, const std::string& name, nn::Parameter& parameter) {
  all.emplace(parameter_input(name),
              StepInput{.value = local_of(parameter.value),
                        .role = Role::parameter,
                        .category = parameter.attached<nn::MemoryPlaces>().value
                                        ? MemoryCategory::other
                                        : MemoryCategory::parameter});
  if (parameter.attached<nn::MemoryPlaces>().gradient && parameter.value.requires_grad()) {
    all.emplace("gradient." + name,
                StepInput{.value = nn::gradient_memory_of(parameter), .role = Role::gradient});
  }
}

void add_buffer(StepInputs& all, const std::string& name, const nn::Buffer& buffer) {
  all.emplace("buffer." + name, StepInput{.value = local_of(buffer.value), .role = Role::buffer});
}

void add_state(StepInputs& all, const std::string& prefix, const optim::Optimizer& optimizer) {
  for (const auto& [name, value] : optimizer.state().tensors) {
    all.emplace(state_input(prefix + name),
                StepInput{.value = local_of(value), .role = Role::optimizer_state});
  }
}

void add_values(StepInputs& all, const std::map<std::string, Tensor>& values, Role role) {
  for (const auto& [name, value] : values) {
    all.emplace(name, StepInput{.value = value, .role = role});
  }
}

void add_rows(StepInputs& all, int micro_batch, const Tensors& rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    all.insert_or_assign(
        fmt::format("rows.{}.{}", micro_batch, i),
        StepInput{.value = rows[i], .role = Role::rows, .micro_batch = micro_batch});
  }
}

}  // namespace tessera
