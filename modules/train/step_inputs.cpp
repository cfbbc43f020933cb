module;
#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :step_inputs;

namespace tessera {

std::string parameter_input(const std::string& name) { return "parameter." + name; }
std::string state_input(const std::string& name) { return "optimizer." + name; }

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
