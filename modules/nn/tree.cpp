module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

Parameter::Parameter(const Dims& shape, DType dtype, Initialization init)
    : value(empty(shape, dtype, meta)), initialization(init) {
  value.set_requires_grad();
}

Module::Module() = default;
Module::~Module() = default;

Tensors Module::operator()(const Tensors& inputs) {
  const ModuleScope scope(scope_);
  try {
    if (!modes_installed()) [[likely]] {
      return run(inputs);
    }
    Action action{.kind = ActionKind::module, .name = *scope_, .in = inputs};
    perform(action, [&] { action.out = run(action.in); });
    return std::move(action.out);
  } catch (const Error& error) {
    rethrow_in_module(error, scope_, false);
  }
}

std::size_t Module::named_inputs() {
  if (!named_inputs_) {
    named_inputs_ = input_names().size();
  }
  return *named_inputs_;
}

Tensors Module::run(const Tensors& inputs) {
  const std::size_t named = named_inputs();
  if (named > 0 && inputs.size() > named) {
    fail(fmt::format("{}: got too many inputs (expected at most {}: {}; got {})", kind(), named,
                     join_words(input_names()), inputs.size()));
  }
  if (pre_hooks_.empty() && hooks_.empty() && inputs.size() >= named) {
    return forward(inputs);
  }
  Tensors seen = inputs;
  seen.resize(std::max(named, inputs.size()));
  for (const ForwardPreHook& hook : pre_hooks_) {
    hook(*this, seen);
  }
  Tensors outputs = forward(seen);
  for (const ForwardHook& hook : hooks_) {
    hook(*this, seen, outputs);
  }
  return outputs;
}

Tensor Module::operator()(const Tensor& input) {
  Tensors outputs = (*this)(Tensors{input});
  if (outputs.empty()) {
    fail(
        fmt::format("module '{}' ({}): returned no output (expected at least one)", name_, kind()));
  }
  return std::move(outputs[0]);
}

const Tensor& Module::input(const Tensors& inputs, std::size_t position) const {
  if (position < inputs.size() && inputs[position]) {
    return inputs[position];
  }
  const std::vector<std::string> names = input_names();
  fail(fmt::format(
      "{}: input {} is missing (expected a tensor, got {}); pass it in the call", kind(),
      position < names.size() ? fmt::format("'{}'", names[position]) : fmt::format("{}", position),
      position < inputs.size() ? "an undefined one" : "none"));
}

Tensors Module::by_name(std::initializer_list<NamedTensor> inputs) {
  const std::vector<std::string> names = input_names();
  Tensors all;
  all.resize(names.size());
  for (const NamedTensor& input : inputs) {
    const auto found = std::find(names.begin(), names.end(), input.name);
    if (found == names.end()) {
      fail(fmt::format("module '{}' ({}): has no input '{}' (its inputs: {})", name_, kind(),
                       input.name, names.empty() ? "unnamed" : join_words(names)));
    }
    all[static_cast<std::size_t>(found - names.begin())] = input.value;
  }
  return (*this)(all);
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

void Module::add_pre_hook(ForwardPreHook hook) { pre_hooks_.push_back(std::move(hook)); }
void Module::add_hook(ForwardHook hook) { hooks_.push_back(std::move(hook)); }
void Module::add_outer_pre_hook(ForwardPreHook hook) {
  pre_hooks_.insert(pre_hooks_.begin(), std::move(hook));
}

void Module::keep_alive(std::shared_ptr<const void> owner) {
  kept_alive_.push_back(std::move(owner));
}

void Module::train(bool training) {
  training_ = training;
  for (const auto& [key, child] : children_) {
    child->train(training);
  }
}

void Module::check_placements(std::span<const int>) const {}

namespace {

/// A child or parameter that is about to be added under `name`.
template <class Entries, class Pointer>
void check_addition(const char* what, const std::string& name, const Entries& entries,
                    const Pointer& added) {
  if (name.empty() || !added) {
    fail(fmt::format("module: a {} was added without {}", what,
                     name.empty() ? "a name" : "an object"));
  }
  if (std::any_of(entries.begin(), entries.end(),
                  [&](const auto& entry) { return entry.first == name; })) {
    fail(fmt::format("module: it has a {} '{}' already; use another name", what, name));
  }
}

}  // namespace

void Module::add_parameter(std::string name, ParameterPointer parameter) {
  check_addition("parameter", name, parameters_, parameter);
  parameters_.emplace_back(std::move(name), std::move(parameter));
}

void Module::attach(std::string name, std::shared_ptr<Module> child) {
  check_addition("child", name, children_, child);
  children_.emplace_back(std::move(name), std::move(child));
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

std::vector<std::pair<std::string, ParameterPointer>> named_parameters(Module& root) {
  std::vector<std::pair<std::string, ParameterPointer>> named;
  for (Module* module : all_modules(root)) {
    for (const auto& [key, parameter] : module->parameters()) {
      named.emplace_back(module->name().empty() ? key : module->name() + "." + key, parameter);
    }
  }
  return named;
}

std::vector<ParameterPointer> all_parameters(Module& root) {
  std::vector<ParameterPointer> parameters;
  std::set<const Parameter*> seen;
  for (const auto& [name, parameter] : named_parameters(root)) {
    if (seen.insert(parameter.get()).second) {
      parameters.push_back(parameter);
    }
  }
  return parameters;
}

std::vector<std::size_t> matching_parameters(std::span<const ParameterPointer> parameters,
                                             const std::string& pattern) {
  std::vector<std::size_t> found;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    names.push_back(p.name);
    names.insert(names.end(), p.other_names.begin(), p.other_names.end());
    if (matches_pattern(p.name, pattern) ||
        std::ranges::any_of(p.other_names, [&](const std::string& name) {
          return matches_pattern(name, pattern);
        })) {
      found.push_back(i);
    }
  }
  if (found.empty()) {
    fail_input(fmt::format("the pattern '{}' matches no parameter{}", pattern,
                           did_you_mean(pattern, names)));
  }
  return found;
}

void freeze(Module& root, std::span<const std::string> patterns) {
  const std::vector<ParameterPointer> parameters = all_parameters(root);
  for (const std::string& pattern : patterns) {
    for (const std::size_t i : matching_parameters(parameters, pattern)) {
      parameters[i]->value.set_requires_grad(false);
    }
  }
  if (!patterns.empty() && std::ranges::none_of(parameters, [](const ParameterPointer& p) {
        return p->value.requires_grad();
      })) {
    fail_input(
        fmt::format("all {} parameters are frozen, so there is nothing to train; remove a "
                    "pattern",
                    parameters.size()));
  }
}

void materialize(Module& root, Device device) {
  const MemoryScope scope(MemoryCategory::parameter);
  for (const ParameterPointer& parameter : all_parameters(root)) {
    Tensor& value = parameter->value;
    if (!value.is_meta()) {
      continue;
    }
    const bool trained = value.requires_grad();
    if (value.is_distributed()) {
      value = make_distributed(zeros(value.local().shape(), value.dtype(), device), value.spec());
    } else {
      value = zeros(value.shape(), value.dtype(), device);
    }
    value.set_requires_grad(trained);
  }
}

void initialize(Module& root) {
  const NoGrad no_grad;
  RandomStream& stream = random_stream("init");
  for (const ParameterPointer& parameter : all_parameters(root)) {
    const Initialization& init = parameter->initialization;
    switch (init.kind) {
      case Initialization::Kind::zeros:
        ops::fill_(parameter->value, 0);
        break;
      case Initialization::Kind::ones:
        ops::fill_(parameter->value, 1);
        break;
      case Initialization::Kind::normal:
        ops::normal_(parameter->value, 0, init.standard_deviation, stream);
        break;
    }
  }
}

std::int64_t parameter_count(Module& root) {
  std::int64_t count = 0;
  for (const ParameterPointer& parameter : all_parameters(root)) {
    count += parameter->value.numel();
  }
  return count;
}

}  // namespace tessera::nn
