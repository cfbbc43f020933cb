module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;

namespace tessera::nn {

std::span<const Child> blocks_in(std::span<const Child> blocks, PieceRange pieces) {
  const std::size_t first = std::min(std::max<std::size_t>(pieces.first, 1) - 1, blocks.size());
  const std::size_t last = pieces.ends()
                               ? blocks.size()
                               : std::min(std::max<std::size_t>(pieces.last, 1) - 1, blocks.size());
  return blocks.subspan(first, std::max(first, last) - first);
}

std::string_view AbsentModule::kind() const { return "AbsentModule"; }

Tensors AbsentModule::forward(const Tensors& /*inputs*/) {
  fail({.thing = fmt::format("module '{}'", name()),
        .wrong = "another stage of the model has it, on other ranks",
        .advice = "let the steps of a Training compute the model, stage by stage"});
}

namespace {

/// The module and the name below its parent.
std::pair<Module*, std::string> parent_of(Module& root, const std::string& name) {
  for (Module* const parent : all_modules(root)) {
    for (const auto& [key, child] : parent->children()) {
      if (child->name() == name) {
        return {parent, key};
      }
    }
  }
  fail(fmt::format("the model has no module '{}' below it", name));
}

}  // namespace

void make_absent(Module& root, std::span<const std::string> names) {
  for (const std::string& name : names) {
    const auto [parent, key] = parent_of(root, name);
    parent->replace_child(key,
                          [](const std::shared_ptr<Module>& module) -> std::shared_ptr<Module> {
                            return std::make_shared<AbsentModule>(module);
                          });
  }
}

std::vector<std::string> absent_modules(Module& root) {
  std::vector<std::string> names;
  for (const Module* const module : all_modules(root)) {
    if (dynamic_cast<const AbsentModule*>(module) != nullptr) {
      names.push_back(module->name());
    }
  }
  return names;
}

std::vector<WholeModule> whole_modules(Module& root) {
  std::vector<WholeModule> all;
  for (Module* const module : all_modules(root)) {
    if (auto* const absent = dynamic_cast<AbsentModule*>(module)) {
      for (Module* const inside : all_modules(absent->module())) {
        all.push_back({inside, true});
      }
    } else {
      all.push_back({module, false});
    }
  }
  return all;
}

std::vector<ParameterPointer> whole_parameters(Module& root) {
  std::vector<ParameterPointer> parameters;
  std::set<const Parameter*> seen;
  for (const auto& [module, absent] : whole_modules(root)) {
    for (const auto& [key, parameter] : module->parameters()) {
      if (seen.insert(parameter.get()).second) {
        parameters.push_back(parameter);
      }
    }
  }
  return parameters;
}

}  // namespace tessera::nn
