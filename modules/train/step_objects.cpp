module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.graph;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :step_plan;
import :step_objects;

namespace tessera {

namespace {

/// What a function is, with what it holds where that fits into it.
template <class F>
std::uint64_t identity_of(const F& function) {
  std::array<std::uint64_t, sizeof(F) / sizeof(std::uint64_t)> words;
  std::memcpy(words.data(), static_cast<const void*>(&function), sizeof words);
  std::uint64_t hash = function.target_type().hash_code();
  for (const std::uint64_t word : words) {
    hash = hash_combine(hash, word);
  }
  return hash;
}

/// Hooks on a leaf's gradient, but for those of the sums over ranks, which come with its first
/// step.
std::uint64_t leaf_hooks_of(const Tensor& leaf) {
  const GradState* const state = grad_state(leaf);
  std::uint64_t hash = 0;
  if (state == nullptr) {
    return hash;
  }
  for (const GradientHook& hook : state->leaf_hooks) {
    if (std::string_view(hook.target_type().name()).find("GradientFinisher") ==
        std::string_view::npos) {
      hash = hash_combine(hash, identity_of(hook));
    }
  }
  for (const auto& hook : state->post_accumulate_hooks) {
    hash = hash_combine(hash, identity_of(hook));
  }
  return hash;
}

constexpr const char* other_frozen = "other parameters are frozen than when the step was recorded";

}  // namespace

const char* StepState::ModuleState::difference(const ModuleState& was) const {
  return was.module != module             ? "is another one"
         : was.training != training       ? "has another training mode"
         : was.uses_update != uses_update ? "has another use of its low-rank update"
         : was.hooks != hooks             ? "has other hooks"
         : was.changes != changes         ? "has other attributes (note_change)"
         : was.held != held               ? "has other parameters or buffers"
         : was.leaf_hooks != leaf_hooks   ? "has other hooks on gradients"
         : was.updated_by != updated_by   ? "has other optimizers"
                                          : nullptr;
}

StepState::StepState(std::span<nn::Module* const> models,
                     std::span<optim::Optimizer* const> optimizers,
                     std::optional<std::int64_t> updates) {
  for (nn::Module* const model : models) {
    for (const nn::Module* const module : nn::all_modules(*model)) {
      ModuleState form{.module = module,
                       .training = module->is_training(),
                       .uses_update = module->uses_update(),
                       .hooks = module->hooks_identity(),
                       .changes = module->changes()};
      const auto add = [](std::uint64_t& to, std::uint64_t what) { to = hash_combine(to, what); };
      for (const auto& [name, parameter] : module->parameters()) {
        add(form.held, reinterpret_cast<std::uintptr_t>(parameter.get()));
        add(form.trained, parameter->value.requires_grad() ? 1 : 0);
        add(form.leaf_hooks, leaf_hooks_of(parameter->value));
        for (const std::uint64_t one : parameter->attached<optim::Updaters>().optimizers) {
          add(form.updated_by, one);
        }
      }
      for (const auto& [name, buffer] : module->buffers()) {
        add(form.held, reinterpret_cast<std::uintptr_t>(buffer.get()));
      }
      modules_.push_back(form);
    }
  }
  for (const optim::Optimizer* const optimizer : optimizers) {
    OptimizerSteps taken{.optimizer = optimizer, .steps = optimizer->steps()};
    for (const std::int64_t steps : taken.steps) {
      taken.most = updates.value_or(std::max(taken.most, steps));
    }
    for (std::size_t i = 0; i < taken.steps.size(); ++i) {
      if (!optimizer->parameters()[i]->value.requires_grad()) {
        taken.steps[i] = -1;
      }
    }
    taken_.push_back(std::move(taken));
  }
}

StepState StepState::before_updates() const {
  StepState none = *this;
  for (OptimizerSteps& taken : none.taken_) {
    taken.most = 0;
    for (std::int64_t& steps : taken.steps) {
      steps = std::min<std::int64_t>(steps, 0);
    }
  }
  return none;
}

std::string StepState::text() const {
  std::uint64_t hash = 0;
  for (const ModuleState& form : modules_) {
    hash = hash_combine(hash, reinterpret_cast<std::uintptr_t>(form.module));
    for (const std::uint64_t part :
         {std::uint64_t{form.training}, std::uint64_t{form.uses_update}, form.hooks, form.changes,
          form.held, form.trained, form.leaf_hooks, form.updated_by}) {
      hash = hash_combine(hash, part);
    }
  }
  std::string text = fmt::format(" modules {:x}", hash);
  for (const OptimizerSteps& taken : taken_) {
    text += ' ';
    for (const std::int64_t steps : taken.steps) {
      // One that nothing has updated yet may be one that nothing updates.
      text += steps < 0 ? "-," : fmt::format("{},", steps == 0 ? 0 : taken.most - steps);
    }
  }
  return text;
}

std::string StepState::misfit(const StepState& recorded, const Updated& updated) const {
  for (std::size_t i = 0; i < std::min(recorded.modules_.size(), modules_.size()); ++i) {
    const ModuleState& was = recorded.modules_[i];
    const ModuleState& is = modules_[i];
    if (const char* const what = is.difference(was)) {
      return fmt::format("module '{}' {} than when the step was recorded", is.module->name(), what);
    }
    if (was.trained != is.trained) {
      return other_frozen;
    }
  }
  if (recorded.modules_.size() != modules_.size()) {
    return "there are other modules than when the step was recorded";
  }
  for (std::size_t o = 0; o < recorded.taken_.size(); ++o) {
    const OptimizerSteps& was = recorded.taken_[o];
    const OptimizerSteps& is = taken_[o];
    for (std::size_t i = 0; i < is.steps.size(); ++i) {
      if ((was.steps[i] < 0) != (is.steps[i] < 0)) {
        return other_frozen;
      }
    }
    for (const std::size_t i : updated[o]) {
      if (is.most - is.steps[i] != was.most - was.steps[i]) {
        return fmt::format("'{}' has missed {} updates, and {} when the step was recorded",
                           is.optimizer->parameters()[i]->name, is.most - is.steps[i],
                           was.most - was.steps[i]);
      }
    }
  }
  return {};
}

std::string StepObjects::unique(std::string name) {
  while (!names_.insert(name).second) {
    name = "other." + name;
  }
  return name;
}

std::string StepObjects::prefix(std::size_t optimizer) {
  return optimizer == 0 ? std::string() : fmt::format("{}.", optimizer + 1);
}

void StepObjects::add(const nn::ParameterPointer& parameter) {
  if (!names_of_.contains(parameter.get())) {
    const std::string name = unique(parameter->name);
    names_of_[parameter.get()] = name;
    parameters_.emplace_back(name, parameter);
  }
}

void StepObjects::add(nn::Module& module) {
  parallel::ParallelPlan* const plan = parallel::plan_of(module);
  nn::Module& model = plan == nullptr ? module : plan->model();
  if (std::ranges::find(models_, &model) != models_.end()) {
    return;
  }
  models_.push_back(&model);
  lives_.push_back(model.life());
  if (plan != nullptr) {
    plans_.push_back(plan);
  }
  const std::vector<nn::ParameterPointer> parameters = nn::all_parameters(model);
  if (std::ranges::any_of(parameters, [](const auto& p) { return p->name.empty(); })) {
    model.set_names();
  }
  for (const nn::ParameterPointer& parameter : parameters) {
    add(parameter);
  }
  for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
    if (std::ranges::find(buffers_, buffer, [](const auto& one) { return one.second; }) ==
        buffers_.end()) {
      buffers_.emplace_back(unique(buffer->name), buffer);
    }
  }
}

std::size_t StepObjects::add(optim::Optimizer& optimizer) {
  const auto found = std::ranges::find(optimizers_, &optimizer);
  const auto number = static_cast<std::size_t>(found - optimizers_.begin());
  if (found == optimizers_.end()) {
    optimizers_.push_back(&optimizer);
    lives_.push_back(optimizer.life());
    finishers_.push_back(std::make_unique<parallel::GradientFinisher>());
    for (const nn::ParameterPointer& parameter : optimizer.parameters()) {
      add(parameter);  // of no model that was called
    }
  }
  return number;
}

bool StepObjects::is_lost() const {
  return std::ranges::any_of(lives_, [](const auto& life) { return life.expired(); });
}

std::vector<Tensor> StepObjects::held() const {
  std::vector<Tensor> all;
  for (const auto& [name, parameter] : parameters_) {
    all.push_back(parameter->value);
  }
  for (const auto& [name, buffer] : buffers_) {
    all.push_back(buffer->value);
  }
  return all;
}

void StepObjects::check_kept(std::span<const Tensor> before) const {
  const std::vector<Tensor> now = held();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!now[i].same_as(before[i])) {
      fail({.thing = "record",
            .wrong = held_in_words(i) +
                     " has another tensor after the step than before it, which no replay would "
                     "give it",
            .advice = "write into it (ops::copy_ under NoGrad) instead of replacing its value"});
    }
  }
}

std::string StepObjects::held_in_words(std::size_t i) const {
  return i < parameters_.size()
             ? fmt::format("parameter '{}'", parameters_[i].first)
             : fmt::format("buffer '{}'", buffers_[i - parameters_.size()].first);
}

std::vector<std::uint64_t> StepObjects::versions() const {
  std::vector<std::uint64_t> all;
  for (const Tensor& x : held()) {
    all.push_back(local_of(x).storage().version());
  }
  return all;
}

void StepObjects::rethrow_with_changes(const Error& error,
                                       std::span<const std::uint64_t> before) const {
  if (typeid(error) != typeid(Error)) {
    throw;  // another rank's
  }
  const std::vector<std::uint64_t> now = versions();
  std::string first;
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if (now[i] != before[i] && ++count == 1) {
      first = held_in_words(i);
    }
  }
  if (count == 0) {
    throw;
  }
  ErrorFields fields = error.fields();
  fields.details += fmt::format(
      "{}before this error the step has written {}{}; what is written "
      "stays",
      fields.details.empty() ? "" : "\n", first,
      count == 1 ? "" : fmt::format(" and {} more", count - 1));
  throw Error(std::move(fields), error.kind());
}

std::string StepObjects::owner_of(const Storage& storage) const {
  const auto is_its = [&](const auto& one) {
    return &local_of(one.second->value).storage() == &storage;
  };
  if (const auto found = std::ranges::find_if(parameters_, is_its); found != parameters_.end()) {
    return parameter_input(found->first);
  }
  const auto found = std::ranges::find_if(buffers_, is_its);
  return found == buffers_.end() ? std::string() : buffer_input(found->first);
}

std::string StepObjects::input_of(const nn::ParameterPointer& parameter) const {
  return parameter_input(names_of_.at(parameter.get()));
}

StepInputs StepObjects::inputs(const graph::AddedState& added) const {
  StepInputs all;
  for (const auto& [name, parameter] : parameters_) {
    const auto& places = parameter->attached<nn::MemoryPlaces>();
    all.emplace(
        parameter_input(name),
        StepInput{.value = local_of(parameter->value),
                  .role = Role::parameter,
                  .category = places.value ? MemoryCategory::other : MemoryCategory::parameter});
    if (places.gradient && parameter->value.requires_grad()) {
      all.emplace(gradient_input(name),
                  StepInput{.value = nn::gradient_memory_of(*parameter), .role = Role::gradient});
    }
  }
  for (const auto& [name, buffer] : buffers_) {
    all.emplace(buffer_input(name),
                StepInput{.value = local_of(buffer->value), .role = Role::buffer});
  }
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    for (const auto& [name, value] : optimizers_[i]->state().tensors) {
      all.emplace(state_input(prefix(i) + name),
                  StepInput{.value = local_of(value), .role = Role::optimizer_state});
    }
  }
  add_values(all, added, Role::transform_state);
  return all;
}

StepState::Updated StepObjects::updated_by(const Program& program) const {
  StepState::Updated all(optimizers_.size());
  std::set<std::pair<int, std::string>> updates;
  for (const ProgramUpdate& update : program.updates) {
    updates.emplace(update.optimizer, update.input);
  }
  for (std::size_t o = 0; o < optimizers_.size(); ++o) {
    const std::vector<nn::ParameterPointer>& parameters = optimizers_[o]->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (updates.contains({static_cast<int>(o), input_of(parameters[i])})) {
        all[o].push_back(i);
      }
    }
  }
  return all;
}

void StepObjects::record_updates(Recorder& recorder, std::size_t optimizer,
                                 std::span<const std::size_t> updated) const {
  for (const std::size_t i : updated) {
    recorder.update(static_cast<int>(optimizer), input_of(optimizers_[optimizer]->parameters()[i]));
  }
}

Device StepObjects::device() const {
  return parameters_.empty() ? cpu : parameters_.front().second->value.device();
}

std::string StepObjects::held_gradient() const {
  const auto held = std::ranges::find_if(
      parameters_, [](const auto& one) { return static_cast<bool>(one.second->value.grad()); });
  return held == parameters_.end()
             ? std::string()
             : fmt::format("'{}' has a gradient before the step", held->second->name);
}

std::string StepObjects::count_name(std::size_t optimizer) {
  return prefix(optimizer) + step_numbers::updates.name;
}

void StepObjects::set_count(std::size_t optimizer, StepPlan& plan) const {
  const std::vector<std::int64_t> steps = optimizers_[optimizer]->steps();
  const std::int64_t made = steps.empty() ? 0 : *std::ranges::max_element(steps);
  plan.set_count(count_name(optimizer), step_numbers::updates.of({.updates = made}));
}

void StepObjects::set_counts(StepPlan& plan) const {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    set_count(i, plan);
  }
}

void StepObjects::prepare_state() {
  for (optim::Optimizer* const optimizer : optimizers_) {
    optimizer->prepare_state();
  }
}

void StepObjects::begin_sums(const Count& begun) {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    finishers_[i]->begin(optimizers_[i]->parameters(), begun);
  }
}

void StepObjects::finish_sums(const std::set<std::size_t>& updated) {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    if (!updated.contains(i)) {
      finishers_[i]->finish(optimizers_[i]->parameters());
    }
  }
}

Tensor StepObjects::gradient_norm(std::size_t optimizer, double p) {
  const NoGrad no_grad;
  const std::vector<nn::ParameterPointer>& parameters = optimizers_[optimizer]->parameters();
  finishers_[optimizer]->finish(parameters);
  Tensor power;
  run_phase(name_of(Phase::gradient_norm),
            [&] { power = optim::gradient_norm_power(parameters, p); });
  return p == 2                    ? ops::sqrt(power)
         : p == 1 || std::isinf(p) ? power
                                   : ops::pow_scalar(power, 1 / p);
}

namespace {

/// Multiplies gradients by min(1, max_norm / (norm + 1e-6)), as optim::clip_factor has it.
void limit_norm(std::span<const nn::ParameterPointer> parameters, const Tensor& norm,
                double max_norm) {
  const NoGrad no_grad;
  const Tensor factor = ops::clamp(
      ops::div(full({}, max_norm, norm.dtype(), norm.device()), ops::add_scalar(norm, 1e-6)), 0, 1);
  for (const nn::ParameterPointer& parameter : parameters) {
    if (Tensor& gradient = parameter->value.grad()) {
      const Tensor local = local_of(gradient);
      const Tensor limited = ops::mul(local, ops::cast(factor, local.dtype()));
      gradient = gradient.is_distributed() ? make_distributed(limited, gradient.spec()) : limited;
    }
  }
}

}  // namespace

void StepObjects::update(std::size_t optimizer, const Number& lr, const optim::Clipping& clipping,
                         const Number& grad_scale, StepPlan& plan) {
  clipping.check();
  optim::Optimizer& one = *optimizers_[optimizer];
  finishers_[optimizer]->finish(one.parameters());
  if (clipping.max_norm > 0) {
    limit_norm(one.parameters(),
               ops::mul_scalar(gradient_norm(optimizer, clipping.norm), grad_scale),
               clipping.max_norm);
  }
  if (clipping.max_value > 0) {
    optim::clamp_gradients(one.parameters(), clipping.max_value / grad_scale);
  }
  for (nn::Module* const model : models_) {
    nn::end_step(*model);
  }
  before_optimizer();
  set_count(optimizer, plan);  // one that was found in this call
  const std::vector<std::size_t> updated =
      one.step(lr, grad_scale, plan.count(count_name(optimizer)));
  if (Recorder* const recorder = plan.recorder()) {
    record_updates(*recorder, optimizer, updated);
  }
  after_optimizer();
  one.zero_grad();
}

void StepObjects::count_step(const StepState::Updated& updated) {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    if (i < updated.size()) {
      optimizers_[i]->count_step(updated[i]);
    }
    finishers_[i]->count_step();
  }
}

void StepObjects::before_optimizer() {
  for (parallel::ParallelPlan* const plan : plans_) {
    plan->before_optimizer();
  }
}

void StepObjects::after_optimizer() {
  for (parallel::ParallelPlan* const plan : plans_) {
    plan->after_optimizer();
  }
}

void StepObjects::drop_gradients() noexcept {
  for (const auto& [name, parameter] : parameters_) {
    parameter->value.grad() = Tensor();
  }
}

void StepObjects::distribute(const std::map<std::string, Layout>& layouts) {
  for (const auto& [name, parameter] : parameters_) {
    Tensor& value = parameter->value;
    if (value.is_distributed() || value.is_meta()) {
      fail_input({.thing = "compile",
                  .wrong = fmt::format("parameter '{}' cannot be placed by a mode", name),
                  .expected = "a plain tensor with values, equal on all ranks",
                  .got = value.is_meta() ? "one without memory" : to_string(*value.spec()),
                  .advice = "build the model without a plan, and give it memory"});
    }
    const bool trained = value.requires_grad();
    value = tessera::distribute(detached(value), layouts.at(input_of(parameter)));
    value.set_requires_grad(trained);
  }
}

std::map<std::string, Layout> StepObjects::layouts() const {
  std::map<std::string, Layout> all;
  for (const auto& [name, parameter] : parameters_) {
    all.emplace(parameter_input(name), parameter->value.layout());
  }
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    for (const auto& [name, value] : optimizers_[i]->state().tensors) {
      if (value.is_distributed()) {
        all.emplace(state_input(prefix(i) + name), value.layout());
      }
    }
  }
  return all;
}

}  // namespace tessera
