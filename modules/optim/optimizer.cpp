module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
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

Optimizer::Optimizer(std::vector<nn::ParameterPointer> parameters, std::unique_ptr<UpdateRule> rule,
                     const OptimizerOptions& options)
    : parameters_(std::move(parameters)),
      rule_(std::move(rule)),
      states_(rule_->states()),
      entries_(parameters_.size()) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool decays = options.decay == Decay::all || parameters_[i]->value.dims() >= 2;
    entries_[i].weight_decay = decays ? options.weight_decay : 0;
  }
  for (const ParameterGroup& group : options.groups) {
    for (const std::string& pattern : group.on) {
      for (const std::size_t i : nn::matching_parameters(parameters_, pattern)) {
        entries_[i].lr_scale = group.lr_scale.value_or(entries_[i].lr_scale);
        entries_[i].weight_decay = group.weight_decay.value_or(entries_[i].weight_decay);
      }
    }
  }
}

Optimizer::~Optimizer() = default;

bool Optimizer::is_trained(std::size_t i) const { return parameters_[i]->value.requires_grad(); }

Optimizer::Entry& Optimizer::prepared(std::size_t i) {
  Entry& entry = entries_[i];
  if (entry.tensors.size() < states_.size()) {
    const MemoryScope scope(MemoryCategory::optimizer);
    const Tensor parameter = detached(parameters_[i]->value);
    for (std::size_t k = entry.tensors.size(); k < states_.size(); ++k) {
      const DType dtype = states_[k].dtype.value_or(parameter.dtype());
      entry.tensors.push_back(
          ops::zeros_like(dtype == parameter.dtype() ? parameter : ops::cast(parameter, dtype)));
    }
  }
  return entry;
}

std::vector<UpdateGroup> Optimizer::groups(double lr, double grad_scale, std::int64_t more_steps) {
  std::vector<UpdateGroup> groups;
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
    const std::int64_t step = entry.step + 1 + more_steps;
    const double own_lr = lr * entry.lr_scale;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const UpdateGroup& g) {
      return g.step == step && g.lr == own_lr && g.weight_decay == entry.weight_decay &&
             g.parameters[0].is_distributed() == parameter.value.is_distributed() &&
             (!gradient.is_distributed() ||
              g.parameters[0].layout().mesh() == parameter.value.layout().mesh());
    });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {.step = step,
                                           .lr = own_lr,
                                           .weight_decay = entry.weight_decay,
                                           .grad_scale = grad_scale});
      group->states.resize(states_.size());
    }
    group->parameters.push_back(parameter.value);
    group->gradients.push_back(gradient);
    for (std::size_t k = 0; k < states_.size(); ++k) {
      group->states[k].push_back(entry.tensors[k]);
    }
  }
  const bool trains = std::any_of(parameters_.begin(), parameters_.end(),
                                  [](const auto& p) { return p->value.requires_grad(); });
  if (groups.empty() && trains) {
    fail({.thing = "optimizer",
          .wrong = fmt::format("none of the {} parameters has a gradient", parameters_.size()),
          .advice = "call backward() before step(), and zero_grad() after it"});
  }
  return groups;
}

void Optimizer::step(double lr, double grad_scale) {
  const NoGrad no_grad;
  const std::vector<UpdateGroup> updated = groups(lr, grad_scale, 0);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    entries_[i].step += parameters_[i]->value.grad() ? 1 : 0;
  }
  run_phase("optimizer", [&] {
    for (const UpdateGroup& group : updated) {
      rule_->update(group);
    }
  });
}

void Optimizer::rehearse(double lr, double grad_scale, std::int64_t more_steps) {
  const NoGrad no_grad;
  for (const UpdateGroup& group : groups(lr, grad_scale, more_steps)) {
    rule_->update(group);
  }
}

void Optimizer::count_step(std::span<const std::string> names) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    entries_[i].step += std::ranges::find(names, parameters_[i]->name) != names.end() ? 1 : 0;
  }
}

std::vector<double> Optimizer::lr_scales() const {
  std::set<double> scales;
  for (const Entry& entry : entries_) {
    scales.insert(entry.lr_scale);
  }
  return {scales.begin(), scales.end()};
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
      dict.tensors.emplace(states_[k].name + "." + parameters_[i]->name, entries_[i].tensors[k]);
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
