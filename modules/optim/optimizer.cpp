module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

namespace tessera::optim {

namespace {

std::uint64_t next_number() {
  static std::uint64_t last = 0;
  return __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

}  // namespace

Optimizer::Optimizer(std::vector<nn::ParameterPointer> parameters, std::unique_ptr<UpdateRule> rule,
                     const OptimizerOptions& options)
    : parameters_(std::move(parameters)),
      entries_(parameters_.size()),
      number_(next_number()),
      life_(std::make_shared<const bool>(true)) {
  add_rule(std::move(rule));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool decays = options.decay == Decay::all || parameters_[i]->value.dims() >= 2;
    entries_[i].weight_decay = decays ? options.weight_decay : 0;
  }
  for (const ParameterGroup& group : options.groups) {
    const std::optional<std::size_t> own =
        group.rule ? std::optional(add_rule(group.rule)) : std::nullopt;
    for (const std::string& pattern : group.on) {
      for (const std::size_t i : nn::matching_parameters(parameters_, pattern)) {
        entries_[i].rule = own.value_or(entries_[i].rule);
        entries_[i].lr_scale = group.lr_scale.value_or(entries_[i].lr_scale);
        entries_[i].weight_decay = group.weight_decay.value_or(entries_[i].weight_decay);
      }
    }
  }
  assign_fallbacks();
  check_types();
  for (const nn::ParameterPointer& parameter : parameters_) {
    parameter->attach<Updaters>().optimizers.push_back(number_);
  }
  if (OptimizerWatch* const watch = OptimizerWatch::watching()) {
    watch->made_.push_back(this);
  }
}

OptimizerWatch*& OptimizerWatch::watching() {
  thread_local OptimizerWatch* watch = nullptr;
  return watch;
}
OptimizerWatch::OptimizerWatch() : before_(std::exchange(watching(), this)) {}
OptimizerWatch::~OptimizerWatch() { watching() = before_; }

std::size_t Optimizer::add_rule(std::shared_ptr<UpdateRule> rule) {
  std::vector<StateTensor> states = rule->states();
  rules_.push_back({.update = std::move(rule), .states = std::move(states)});
  return rules_.size() - 1;
}

void Optimizer::assign_fallbacks() {
  std::vector<std::pair<std::size_t, double>> rests(rules_.size());  // 0: not made
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Entry& entry = entries_[i];
    const Dims& shape = parameters_[i]->value.shape();
    if (!is_trained(i) || rules_[entry.rule].update->takes(shape)) {
      continue;
    }
    auto& [number, lr_scale] = rests[entry.rule];
    if (number == 0) {
      if (UpdateRule::Fallback fallback = rules_[entry.rule].update->fallback(); fallback.rule) {
        number = add_rule(std::move(fallback.rule));
        lr_scale = fallback.lr_scale;
      }
    }
    if (number == 0 || !rules_[number].update->takes(shape)) {
      fail_input({.thing = "optimizer",
                  .wrong = fmt::format("its rule does not take '{}' of shape {}",
                                       parameters_[i]->name, to_string(shape)),
                  .advice = "give such parameters a group with another optimizer"});
    }
    entry.rule = number;
    entry.lr_scale *= lr_scale;
  }
}

void Optimizer::check_types() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const DType dtype = parameters_[i]->value.dtype();
    if (is_trained(i) && !rules_[entries_[i].rule].update->takes_type(dtype)) {
      fail_input({.thing = "optimizer",
                  .wrong = fmt::format("its rule does not update '{}', which is stored in {}",
                                       parameters_[i]->name, name_of(dtype)),
                  .advice = "keep such parameters in f32, or give them a group with an optimizer "
                            "that does (adamw updates bf16)"});
    }
  }
}

bool Optimizer::is_elementwise() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_trained(i) && !rules_[entries_[i].rule].update->is_elementwise()) {
      return false;
    }
  }
  return true;
}

Optimizer::~Optimizer() {
  for (const nn::ParameterPointer& parameter : parameters_) {
    std::erase(parameter->attach<Updaters>().optimizers, number_);
  }
  if (OptimizerWatch* const watch = OptimizerWatch::watching()) {
    std::erase(watch->made_, this);
  }
}

bool Optimizer::is_trained(std::size_t i) const { return parameters_[i]->value.requires_grad(); }

namespace {

/// Moves a new state to the place where it is kept.
void put_into(MemoryPlace& place, Tensor& state) {
  if (!state) {
    return;
  }
  const Tensor local = local_of(state);
  Tensor kept = allocate_in(place, local.shape(), local.dtype(), local.device());
  if (!kept.is_meta()) {
    ops::copy_(kept, ops::to_device(local, cpu));
    place.put_away(kept);
  }
  state = state.is_distributed() ? make_distributed(std::move(kept), state.spec()) : kept;
}

}  // namespace

Optimizer::Entry& Optimizer::prepared(std::size_t i) {
  Entry& entry = entries_[i];
  const std::vector<StateTensor>& states = rules_[entry.rule].states;
  if (entry.tensors.size() < states.size()) {
    const NoGrad no_grad;
    const MemoryScope scope(MemoryCategory::optimizer);
    const Tensor parameter = detached(parameters_[i]->value);
    for (std::size_t k = entry.tensors.size(); k < states.size(); ++k) {
      entry.tensors.push_back(make_state(states[k], parameter));
      if (const auto& place = parameters_[i]->attached<nn::MemoryPlaces>().state) {
        put_into(*place, entry.tensors.back());
      }
    }
  }
  return entry;
}

UpdateGroup Optimizer::settings(const Entry& entry, const Number& lr, const Number& grad_scale,
                                const Count& count) {
  const std::int64_t step = entry.step + 1;
  return {.step = count.source() == 0 ? Count(step) : count.plus(step - count.untraced_value()),
          .lr = entry.lr_scale == 1 ? lr : lr * entry.lr_scale,
          .weight_decay = entry.weight_decay,
          .grad_scale = grad_scale};
}

std::vector<Optimizer::Part> Optimizer::parts(const Number& lr, const Number& grad_scale,
                                              const Count& count) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = *parameters_[i];
    const Tensor& gradient = parameter.value.grad();
    if (!gradient) {
      continue;
    }
    if (gradient.spec() != parameter.value.spec()) {
      fail({.thing = "optimizer",
            .wrong = fmt::format("the gradient of '{}' has the wrong layout", parameter.name),
            .expected =
                parameter.value.spec() != nullptr ? to_string(*parameter.value.spec()) : "plain",
            .got = gradient.spec() != nullptr ? to_string(*gradient.spec()) : "plain",
            .advice = "call finish() of a parallel::GradientFinisher after the last backward, or "
                      "take steps with Training, which does it"});
    }
    const Entry& entry = prepared(i);
    auto part = std::ranges::find_if(parts, [&](const Part& p) {
      const UpdateGroup& g = p.group;
      return p.rule == entry.rule && g.step.untraced_value() == entry.step + 1 &&
             g.lr.untraced_value() == lr.untraced_value() * entry.lr_scale &&
             g.weight_decay == entry.weight_decay &&
             g.parameters[0].dtype() == parameter.value.dtype() &&
             g.parameters[0].is_distributed() == parameter.value.is_distributed() &&
             (!gradient.is_distributed() ||
              g.parameters[0].layout().mesh() == parameter.value.layout().mesh());
    });
    if (part == parts.end()) {
      part = parts.insert(parts.end(),
                          {.rule = entry.rule, .group = settings(entry, lr, grad_scale, count)});
      part->group.states.resize(entry.tensors.size());
    }
    part->group.parameters.push_back(parameter.value);
    part->group.gradients.push_back(gradient);
    part->members.push_back(i);
    part->group.numbers.push_back(i);
    for (std::size_t k = 0; k < entry.tensors.size(); ++k) {
      part->group.states[k].push_back(entry.tensors[k]);
    }
  }
  const bool trains = std::any_of(parameters_.begin(), parameters_.end(),
                                  [](const auto& p) { return p->value.requires_grad(); });
  if (parts.empty() && trains) {
    fail({.thing = "optimizer",
          .wrong = fmt::format("none of the {} parameters has a gradient", parameters_.size()),
          .advice = "call backward() before step(), and zero_grad() after it"});
  }
  return parts;
}

std::vector<std::size_t> Optimizer::step(const Number& lr, const Number& grad_scale,
                                         const Count& count) {
  const NoGrad no_grad;
  const std::vector<Part> all = parts(lr, grad_scale, count);
  std::vector<std::size_t> updated;
  for (const Part& part : all) {
    updated.insert(updated.end(), part.members.begin(), part.members.end());
  }
  count_step(updated);
  run_phase("optimizer", [&] {
    for (const Part& part : all) {
      update(part);
    }
  });
  return updated;
}

void Optimizer::each_kept_elsewhere(const Part& part, std::size_t first, std::size_t last,
                                    void (MemoryPlace::*call)(const Tensor&)) const {
  const auto apply = [&](const std::shared_ptr<MemoryPlace>& place, const Tensor& x) {
    if (place && x && !x.is_meta()) {
      ((*place).*call)(local_of(x));
    }
  };
  for (std::size_t k = first; k < last; ++k) {
    const auto& places = parameters_[part.members[k]]->attached<nn::MemoryPlaces>();
    apply(places.value, part.group.parameters[k]);
    apply(places.gradient, part.group.gradients[k]);
    for (const std::vector<Tensor>& states : part.group.states) {
      apply(places.state, states[k]);
    }
  }
}

void Optimizer::update(const Part& part) {
  const UpdateGroup& group = part.group;
  UpdateRule& rule = *rules_[part.rule].update;
  const bool elsewhere = std::ranges::any_of(part.members, [&](std::size_t i) {
    const auto& places = parameters_[i]->attached<nn::MemoryPlaces>();
    return places.value || places.gradient || places.state;
  });
  if (!elsewhere) {
    rule.update(group);
    return;
  }
  // By whole sizes, so that the ranks have the same pieces.
  constexpr std::int64_t piece_elements = 4 << 20;
  const std::size_t count = group.parameters.size();
  const auto end_of_piece = [&](std::size_t first) {
    std::size_t last = first;
    for (std::int64_t elements = 0; last < count && elements < piece_elements; ++last) {
      elements += group.parameters[last].numel();
    }
    return last;
  };
  const auto range = []<class T>(const std::vector<T>& all, std::size_t first, std::size_t last) {
    return std::vector<T>(all.begin() + static_cast<std::ptrdiff_t>(first),
                          all.begin() + static_cast<std::ptrdiff_t>(last));
  };
  for (std::size_t first = 0, last = end_of_piece(0); first < count;) {
    const std::size_t next = end_of_piece(last);
    each_kept_elsewhere(part, last, next, &MemoryPlace::fetch);
    UpdateGroup piece{.step = group.step,
                      .lr = group.lr,
                      .weight_decay = group.weight_decay,
                      .grad_scale = group.grad_scale,
                      .numbers = range(group.numbers, first, last),
                      .parameters = range(group.parameters, first, last),
                      .gradients = range(group.gradients, first, last)};
    for (const std::vector<Tensor>& states : group.states) {
      piece.states.push_back(range(states, first, last));
    }
    rule.update(piece);
    each_kept_elsewhere(part, first, last, &MemoryPlace::put_away);
    first = last;
    last = next;
  }
}

void Optimizer::count_step(std::span<const std::size_t> updated) {
  for (const std::size_t i : updated) {
    ++entries_[i].step;
  }
}

std::vector<std::int64_t> Optimizer::steps() const {
  std::vector<std::int64_t> all;
  for (const Entry& entry : entries_) {
    all.push_back(entry.step);
  }
  return all;
}

void Optimizer::zero_grad() {
  for (const nn::ParameterPointer& parameter : parameters_) {
    parameter->value.grad() = Tensor();
  }
}

void Optimizer::prepare_state() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (is_trained(i)) {
      prepared(i);
    }
  }
}

StateDict Optimizer::state() const {
  StateDict dict;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t k = 0; k < entries_[i].tensors.size(); ++k) {
      if (const Tensor& state = entries_[i].tensors[k]) {
        dict.tensors.emplace(rules_[entries_[i].rule].states[k].name + "." + parameters_[i]->name,
                             state);
      }
    }
    if (is_trained(i)) {
      dict.scalars.emplace("step." + parameters_[i]->name, entries_[i].step);
    }
  }
  return dict;
}

void Optimizer::load_scalars(const StateDict& state) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_trained(i)) {
      continue;
    }
    const std::string name = "step." + parameters_[i]->name;
    const auto found = state.scalars.find(name);
    if (found == state.scalars.end() || !std::holds_alternative<std::int64_t>(found->second)) {
      fail_input({.thing = "optimizer",
                  .wrong = fmt::format("the saved state has no '{}'", name),
                  .advice = "it belongs to another model"});
    }
    entries_[i].step = std::get<std::int64_t>(found->second);
  }
}

std::unique_ptr<Optimizer> adamw(std::vector<nn::ParameterPointer> parameters,
                                 const AdamWOptions& rule, const OptimizerOptions& options) {
  return std::make_unique<Optimizer>(std::move(parameters), adamw_rule(rule), options);
}

std::unique_ptr<Optimizer> sgd(std::vector<nn::ParameterPointer> parameters, const SgdOptions& rule,
                               const OptimizerOptions& options) {
  return std::make_unique<Optimizer>(std::move(parameters), sgd_rule(rule), options);
}

}  // namespace tessera::optim
