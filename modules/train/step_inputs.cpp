module;
#include <map>
#include <string>
module tessera.train;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import :step_inputs;

namespace tessera {

std::string parameter_input(const std::string& name) {
  return std::string(parameter_prefix) + name;
}

std::string input_of(const nn::ParameterPointer& parameter) {
  return parameter_input(parameter->name);
}

void add_parameter(std::map<std::string, Tensor>& all, const std::string& name,
                   nn::Parameter& parameter) {
  all.emplace(parameter_input(name), local_of(parameter.value));
  if (parameter.attached<nn::MemoryPlaces>().gradient && parameter.value.requires_grad()) {
    all.emplace("gradient." + name, nn::gradient_memory_of(parameter));
  }
}

void add_buffer(std::map<std::string, Tensor>& all, const std::string& name,
                const nn::Buffer& buffer) {
  all.emplace("buffer." + name, local_of(buffer.value));
}

void add_state(std::map<std::string, Tensor>& all, const std::string& prefix,
               const optim::Optimizer& optimizer) {
  for (const auto& [name, value] : optimizer.state().tensors) {
    all.emplace(std::string(state_prefix) + prefix + name, local_of(value));
  }
}

MemoryCategory category_of_parameter(const nn::Parameter& parameter) {
  return parameter.attached<nn::MemoryPlaces>().value ? MemoryCategory::other
                                                      : MemoryCategory::parameter;
}

}  // namespace tessera
