module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;

namespace tessera::nn {

Module::Module() {
  if (ModuleWatch* const watch = ModuleWatch::watching()) {
    watch->made_.push_back(this);
  }
}
Module::~Module() {
  if (ModuleWatch* const watch = ModuleWatch::watching()) {
    std::erase(watch->made_, this);
    std::erase(watch->called_, this);
  }
}

ModuleWatch*& ModuleWatch::watching() {
  thread_local ModuleWatch* watch = nullptr;
  return watch;
}
ModuleWatch::ModuleWatch() : before_(std::exchange(watching(), this)) {}
ModuleWatch::~ModuleWatch() { watching() = before_; }

void ModuleWatch::note_call(Module& module) {
  if (current_module() == nullptr && std::ranges::find(called_, &module) == called_.end()) {
    called_.push_back(&module);
  }
}

Module& Child::operator*() const {
  if (parent_ == nullptr) {
    fail({.thing = "module",
          .wrong = "a Child that was never added is used",
          .advice = "assign what add_child returns"});
  }
  return *parent_->children_[index_].second;
}

std::shared_ptr<Module> Child::pointer() const {
  return parent_ == nullptr ? nullptr : parent_->children_[index_].second;
}

std::vector<std::string> Module::input_names() const { return {}; }
std::vector<std::string> Module::output_names() const { return {}; }

void Module::set_names(const std::string& name) {
  std::set<const Module*> named;
  const std::function<void(Module&, const std::string&)> visit = [&](Module& module,
                                                                     const std::string& path) {
    if (!named.insert(&module).second) {
      return;
    }
    module.name_ = path;
    module.scope_ = interned_name(path);
    for (const auto& [key, parameter] : module.parameters_) {
      const std::string name_here = path.empty() ? key : path + "." + key;
      if (parameter->name.empty()) {
        parameter->name = name_here;
      } else if (parameter->name != name_here &&
                 std::ranges::find(parameter->other_names, name_here) ==
                     parameter->other_names.end()) {
        parameter->other_names.push_back(name_here);
      }
    }
    for (const auto& [key, buffer] : module.buffers_) {
      if (buffer->name.empty()) {
        buffer->name = path.empty() ? key : path + "." + key;
      }
    }
    for (const auto& [key, child] : module.children_) {
      visit(*child, path.empty() ? key : path + "." + key);
    }
  };
  visit(*this, name);
}

const ParameterPointer& Module::parameter(std::string_view name) const {
  for (const auto& [key, parameter] : parameters_) {
    if (key == name) {
      return parameter;
    }
  }
  fail(fmt::format("module '{}' ({}): has no parameter '{}'", name_, kind(), name));
}

const BufferPointer& Module::buffer(std::string_view name) const {
  for (const auto& [key, buffer] : buffers_) {
    if (key == name) {
      return buffer;
    }
  }
  fail(fmt::format("module '{}' ({}): has no buffer '{}'", name_, kind(), name));
}

void Module::set_parameter(std::string_view name, ParameterPointer parameter) {
  for (auto& [key, slot] : parameters_) {
    if (key != name) {
      continue;
    }
    if (!parameter) {
      fail(fmt::format("module '{}' ({}): set_parameter('{}') got no parameter", name_, kind(),
                       name));
    }
    const Tensor& before = slot->value;
    const Tensor& after = parameter->value;
    if (!(before.shape() == after.shape()) || before.dtype() != after.dtype()) {
      fail(
          fmt::format("module '{}' ({}): parameter '{}' cannot be shared (expected {}{}, got {}{})",
                      name_, kind(), name, name_of(before.dtype()), to_string(before.shape()),
                      name_of(after.dtype()), to_string(after.shape())));
    }
    slot = std::move(parameter);
    return;
  }
  fail(fmt::format("module '{}' ({}): has no parameter '{}'", name_, kind(), name));
}

void Module::note_change() { ++attach<Changes>().count; }

void Module::train(bool training) {
  training_ = training;
  for (const auto& [key, child] : children_) {
    child->train(training);
  }
}

namespace {

/// A child or parameter that is about to be added under `name`.
template <class Entries, class Pointer>
void check_addition(const char* what, const std::string& name, const Entries& entries,
                    const Pointer& added) {
  if (name.empty() || !added) {
    fail({.thing = "module",
          .wrong = fmt::format("a {} was added without {}", what,
                               name.empty() ? "a name" : "an object")});
  }
  if (std::any_of(entries.begin(), entries.end(),
                  [&](const auto& entry) { return entry.first == name; })) {
    fail({.thing = "module",
          .wrong = fmt::format("it has a {} '{}' already", what, name),
          .advice = "use another name"});
  }
}

}  // namespace

void Module::add_parameter(std::string name, ParameterPointer parameter) {
  check_addition("parameter", name, parameters_, parameter);
  parameters_.emplace_back(std::move(name), std::move(parameter));
}

void Module::add_buffer(std::string name, BufferPointer buffer) {
  check_addition("buffer", name, buffers_, buffer);
  if (std::ranges::any_of(parameters_, [&](const auto& entry) { return entry.first == name; })) {
    fail({.thing = "module",
          .wrong = fmt::format("it has a parameter '{}' already", name),
          .advice = "use another name"});
  }
  buffers_.emplace_back(std::move(name), std::move(buffer));
}

Child Module::attach(std::string name, std::shared_ptr<Module> child) {
  check_addition("child", name, children_, child);
  children_.emplace_back(std::move(name), std::move(child));
  return {*this, children_.size() - 1};
}

namespace {

/// Forgets the names of a parameter that lie below `path`.
void forget_names(Parameter& parameter, const std::string& path) {
  const auto below = [&](const std::string& name) { return name.starts_with(path + "."); };
  std::erase_if(parameter.other_names, below);
  if (below(parameter.name)) {
    parameter.name.clear();
    if (!parameter.other_names.empty()) {
      parameter.name = parameter.other_names.front();
      parameter.other_names.erase(parameter.other_names.begin());
    }
  }
}

}  // namespace

void Module::replace_child(std::string_view name, const Replacement& make) {
  const auto found =
      std::ranges::find_if(children_, [&](const auto& child) { return child.first == name; });
  const auto refuse = [&](const std::string& why) {
    fail(fmt::format("module '{}' ({}): child '{}' cannot be replaced: {}", name_, kind(), name,
                     why));
  };
  if (found == children_.end()) {
    refuse("there is no such child");
  }
  std::shared_ptr<Module>& place = found->second;
  if (attached<PlanState>().applied || place->attached<PlanState>().applied) {
    refuse("a plan was applied to it; replace children before");
  }
  if (place.use_count() > 1) {
    refuse(
        "somebody else holds a pointer to it and would go on calling it; its parent must keep it "
        "as an nn::Child, and nothing else may hold it");
  }
  std::shared_ptr<Module> after = make(place);
  if (!after) {
    refuse("nothing was made for its place");
  }
  const std::string path = name_.empty() ? found->first : name_ + "." + found->first;
  for (const ParameterPointer& parameter : all_parameters(*after)) {
    forget_names(*parameter, path);
  }
  place = std::move(after);
  place->set_names(path);
}

int replace_modules(Module& root, const std::string& pattern, const Replacement& make) {
  struct ModuleSlot {
    Module* parent;
    std::string child;
    std::string name;
  };
  std::vector<ModuleSlot> places;
  std::vector<std::string> names;
  for (Module* const parent : all_modules(root)) {
    for (const auto& [key, child] : parent->children()) {
      names.push_back(parent->name().empty() ? key : parent->name() + "." + key);
      if (matches_pattern(names.back(), pattern)) {
        places.push_back({parent, key, names.back()});
      }
    }
  }
  if (places.empty()) {
    fail_input(fmt::format("the pattern '{}' matches no module that can be replaced{}",
                           shown(pattern), did_you_mean(pattern, names)));
  }
  for (const ModuleSlot& outer : places) {
    for (const ModuleSlot& inner : places) {
      if (inner.name.starts_with(outer.name + ".")) {
        fail_input(
            fmt::format("the pattern '{}' matches '{}' and, inside of it, '{}'; replace "
                        "them with two patterns, the inner ones first",
                        pattern, outer.name, inner.name));
      }
    }
  }
  for (const ModuleSlot& place : places) {
    place.parent->replace_child(place.child, make);
  }
  return static_cast<int>(places.size());
}

namespace {

void collect_modules(Module& root, std::set<const Module*>& seen, std::vector<Module*>& modules) {
  if (!seen.insert(&root).second) {
    return;
  }
  modules.push_back(&root);
  for (const auto& [key, child] : root.children()) {
    collect_modules(*child, seen, modules);
  }
}

}  // namespace

std::vector<Module*> all_modules(Module& root) {
  std::vector<Module*> modules;
  std::set<const Module*> seen;
  collect_modules(root, seen, modules);
  return modules;
}

EvaluationScope::EvaluationScope(Module& root) {
  for (Module* module : all_modules(root)) {
    before_.emplace_back(module, std::exchange(module->training_, false));
  }
}

EvaluationScope::~EvaluationScope() {
  for (const auto& [module, training] : before_) {
    module->training_ = training;
  }
}

}  // namespace tessera::nn
