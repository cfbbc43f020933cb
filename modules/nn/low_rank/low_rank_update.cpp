module;
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;

namespace tessera::nn {
namespace {

constexpr std::uint64_t updates_bit = 1;  // of PartSwitches

}  // namespace

double LowRankUpdate::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(r) : r);
}

const std::optional<LowRankUpdate>& low_rank_update_of(const Module& module) {
  return module.attached<TrainedUpdate>().update;
}

bool uses_update(const Module& module) {
  return (module.attached<PartSwitches>().parts & updates_bit) == 0;
}

std::vector<ParameterPointer> own_update_parameters(const Module& module) {
  std::vector<ParameterPointer> parameters;
  if (const std::optional<LowRankUpdate>& update = low_rank_update_of(module)) {
    parameters.push_back(module.parameter("lora_A"));
    parameters.push_back(module.parameter("lora_B"));
    if (update->dora) {
      parameters.push_back(module.parameter("magnitude"));
    }
  }
  return parameters;
}

std::vector<ParameterPointer> update_parameters(Module& root) {
  std::vector<ParameterPointer> parameters;
  for (const Module* const module : all_modules(root)) {
    std::ranges::copy(own_update_parameters(*module), std::back_inserter(parameters));
  }
  return parameters;
}

void freeze_all_but_updates(Module& root) {
  const std::vector<ParameterPointer> trained = update_parameters(root);
  for (const ParameterPointer& parameter : all_parameters(root)) {
    if (std::ranges::find(trained, parameter) == trained.end() &&
        is_floating(parameter->value.dtype())) {
      parameter->value.set_requires_grad(false);
    }
  }
}

void initialize_updates(Module& root) {
  for (const auto& [module, absent] : whole_modules(root)) {
    initialize(own_update_parameters(*module));
  }
}

WithoutUpdatesScope::WithoutUpdatesScope(Module& root) {
  for (Module* const module : all_modules(root)) {
    if (low_rank_update_of(*module) && uses_update(*module)) {
      module->attach<PartSwitches>().parts |= updates_bit;
      off_.push_back(module);
    }
  }
}

WithoutUpdatesScope::~WithoutUpdatesScope() {
  for (Module* const module : off_) {
    module->attach<PartSwitches>().parts &= ~updates_bit;
  }
}

}  // namespace tessera::nn
