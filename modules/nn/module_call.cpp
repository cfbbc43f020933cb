// A module's call: inputs by position and by name, and the hooks around forward.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;

namespace tessera::nn {
namespace {

/// Hooks in the order of their calls. A change makes a new list, so that a call in progress keeps
/// the one that it began with.
template <class F>
class HookList {
 public:
  struct Hook {
    std::uint64_t number;
    F call;
    bool converts;  // outputs, and nothing else
  };
  using Hooks = std::vector<Hook>;

  std::shared_ptr<const Hooks> now() const { return hooks_; }

  void add(Hook hook, bool first) {
    Hooks hooks = hooks_ ? *hooks_ : Hooks{};
    hooks.insert(first ? hooks.begin() : hooks.end(), std::move(hook));
    hooks_ = std::make_shared<const Hooks>(std::move(hooks));
  }

  std::uint64_t identity(std::uint64_t hash) const {
    for (const Hook& hook : hooks_ ? *hooks_ : Hooks{}) {
      hash = hash_combine(hash, hook.number);
    }
    return hash;
  }

  void remove(std::uint64_t number) {
    if (hooks_) {
      Hooks hooks = *hooks_;
      std::erase_if(hooks, [number](const Hook& hook) { return hook.number == number; });
      hooks_ = std::make_shared<const Hooks>(std::move(hooks));
    }
  }

 private:
  std::shared_ptr<const Hooks> hooks_;
};

}  // namespace

struct ModuleHooks {
  HookList<ForwardPreHook> before;
  HookList<ForwardHook> after;
  std::uint64_t added = 0;

  static const ModuleHooks* of(const Module& module) { return module.hooks_.get(); }
  static HookHandle add_conversion(Module& module, ForwardHook hook);
  static Tensors call_beyond(Module& module, const Tensors& inputs,
                             const std::function<Tensors(const Tensors&)>& method);
};

void HookHandle::remove() {
  if (const std::shared_ptr<ModuleHooks> hooks = hooks_.lock()) {
    hooks->before.remove(number_);
    hooks->after.remove(number_);
  }
  hooks_.reset();
}

ModuleHooks& Module::hooks() {
  if (!hooks_) {
    hooks_ = std::make_shared<ModuleHooks>();
  }
  return *hooks_;
}

std::uint64_t hooks_identity(const Module& module) {
  const ModuleHooks* const hooks = ModuleHooks::of(module);
  return hooks == nullptr ? 0 : hooks->after.identity(hooks->before.identity(0));
}

HookHandle Module::add_pre_hook(ForwardPreHook hook) {
  const std::uint64_t number = ++hooks().added;
  hooks_->before.add({number, std::move(hook), false}, false);
  return {hooks_, number};
}

HookHandle Module::add_outer_pre_hook(ForwardPreHook hook) {
  const std::uint64_t number = ++hooks().added;
  hooks_->before.add({number, std::move(hook), false}, true);
  return {hooks_, number};
}

HookHandle Module::add_hook(ForwardHook hook) {
  const std::uint64_t number = ++hooks().added;
  hooks_->after.add({number, std::move(hook), false}, false);
  return {hooks_, number};
}

HookHandle ModuleHooks::add_conversion(Module& module, ForwardHook hook) {
  const std::uint64_t number = ++module.hooks().added;
  module.hooks_->after.add({number, std::move(hook), true}, false);
  return {module.hooks_, number};
}

HookHandle add_conversion(Module& module, ForwardHook hook) {
  return ModuleHooks::add_conversion(module, std::move(hook));
}

std::size_t Module::named_inputs() {
  if (!named_inputs_) {
    named_inputs_ = input_names().size();
  }
  return *named_inputs_;
}

template <class Method>
Tensors Module::with_hooks(const Tensors& inputs, const Method& method, bool converts) {
  const std::size_t named = named_inputs();
  if (named > 0 && inputs.size() > named) {
    fail({.thing = std::string(kind()),
          .wrong = "got too many inputs",
          .expected = fmt::format("at most {}: {}", named, join_words(input_names())),
          .got = fmt::format("{}", inputs.size())});
  }
  if (!hooks_ && inputs.size() >= named) {
    return method(inputs);
  }
  Tensors seen = inputs;
  seen.resize(std::max(named, inputs.size()));
  if (!hooks_) {
    return method(seen);
  }
  const auto before = hooks_->before.now();  // what is added or removed from here on has effect
  const auto after = hooks_->after.now();    // at the next call
  if (before) {
    for (const auto& hook : *before) {
      hook.call(*this, seen);
    }
  }
  Tensors outputs = method(seen);
  if (after) {
    for (const auto& hook : *after) {
      if (converts || !hook.converts) {
        hook.call(*this, seen, outputs);
      }
    }
  }
  return outputs;
}

template <class Method>
Tensors Module::in_scope(const Tensors& inputs, const Method& method, bool converts) {
  if (ModuleWatch* const watch = ModuleWatch::watching()) [[unlikely]] {
    watch->note_call(*this);
  }
  const ModuleScope scope(scope_);
  try {
    if (!modes_installed()) [[likely]] {
      return with_hooks(inputs, method, converts);
    }
    Action action{.kind = ActionKind::module, .name = *scope_, .in = inputs};
    perform(action, [&] { action.out = with_hooks(action.in, method, converts); });
    return std::move(action.out);
  } catch (const Error& error) {
    rethrow_in_module(error, scope_, false);
  }
}

Tensors Module::operator()(const Tensors& inputs) {
  return in_scope(inputs, [this](const Tensors& seen) { return forward(seen); }, true);
}

Tensors Module::call(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& method) {
  return in_scope(inputs, method, true);
}

Tensors ModuleHooks::call_beyond(Module& module, const Tensors& inputs,
                                 const std::function<Tensors(const Tensors&)>& method) {
  return module.in_scope(inputs, method, false);
}

Tensors call_beyond(Module& module, const Tensors& inputs,
                    const std::function<Tensors(const Tensors&)>& method) {
  return ModuleHooks::call_beyond(module, inputs, method);
}

Tensors convert_outputs(Module& module, const Tensors& inputs, Tensors outputs) {
  const ModuleHooks* const hooks = ModuleHooks::of(module);
  if (const auto after = hooks == nullptr ? nullptr : hooks->after.now()) {
    for (const auto& hook : *after) {
      if (hook.converts) {
        hook.call(module, inputs, outputs);
      }
    }
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
  fail({.thing = std::string(kind()),
        .wrong = fmt::format("input {} is missing", position < names.size()
                                                        ? fmt::format("'{}'", names[position])
                                                        : fmt::format("{}", position)),
        .expected = "a tensor",
        .got = position < inputs.size() ? "an undefined one" : "none",
        .advice = "pass it in the call"});
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

}  // namespace tessera::nn
