module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
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

class AdamW final : public Optimizer {
 public:
  AdamW(std::vector<nn::ParameterPointer> parameters, const AdamWOptions& options)
      : Optimizer(std::move(parameters), {"exp_avg", "exp_avg_sq"}, options.decay),
        options_(options) {}

 protected:
  void step_group(const Group& group, double lr, double grad_scale) override {
    ops::adamw_(group.parameters, group.gradients, group.states[0], group.states[1],
                {.lr = lr,
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .eps = options_.eps,
                 .weight_decay = group.decays ? options_.weight_decay : 0,
                 .grad_scale = grad_scale,
                 .step = group.step});
  }

 private:
  AdamWOptions options_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<nn::ParameterPointer> parameters, const SgdOptions& options)
      : Optimizer(std::move(parameters),
                  options.momentum == 0 ? std::vector<std::string>{}
                                        : std::vector<std::string>{"momentum_buffer"},
                  options.decay),
        options_(options) {}

 protected:
  void step_group(const Group& group, double lr, double grad_scale) override {
    const std::vector<Tensor> none(group.states.empty() ? group.parameters.size() : 0);
    ops::sgd_(group.parameters, group.gradients, group.states.empty() ? none : group.states[0],
              {.lr = lr,
               .momentum = options_.momentum,
               .weight_decay = group.decays ? options_.weight_decay : 0,
               .grad_scale = grad_scale,
               .nesterov = options_.nesterov,
               .first = group.step == 1});
  }

 private:
  SgdOptions options_;
};

}  // namespace

Optimizer::Optimizer(std::vector<nn::ParameterPointer> parameters,
                     std::vector<std::string> state_names, Decay decay)
    : parameters_(std::move(parameters)),
      state_names_(std::move(state_names)),
      decay_(decay),
      states_(parameters_.size()) {}

Optimizer::~Optimizer() = default;

Optimizer::State& Optimizer::state_of(std::size_t i) {
  State& state = states_[i];
  if (state.tensors.size() < state_names_.size()) {
    const MemoryScope scope(MemoryCategory::optimizer);
    for (std::size_t k = state.tensors.size(); k < state_names_.size(); ++k) {
      state.tensors.push_back(ops::zeros_like(detached(parameters_[i]->value)));
    }
  }
  return state;
}

void Optimizer::step(double lr, double grad_scale) {
  const NoGrad no_grad;
  std::vector<Group> groups;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = *parameters_[i];
    const Tensor& gradient = parameter.value.grad();
    if (!gradient) {
      continue;
    }
    if (gradient.spec() != parameter.value.spec()) {
      fail(fmt::format(
          "optimizer: the gradient of '{}' has the wrong layout (expected {}, got {}); call "
          "finish_gradients() of the parallel plan, which converts gradients to their parameters' "
          "layouts",
          parameter.name,
          parameter.value.spec() != nullptr ? to_string(*parameter.value.spec()) : "plain",
          gradient.spec() != nullptr ? to_string(*gradient.spec()) : "plain"));
    }
    State& state = state_of(i);
    ++state.step;
    const bool decayed = decay_ == Decay::all || parameter.value.dims() >= 2;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& g) {
      return g.step == state.step && g.decays == decayed &&
             g.parameters[0].is_distributed() == parameter.value.is_distributed() &&
             (!gradient.is_distributed() ||
              g.parameters[0].layout().mesh() == parameter.value.layout().mesh());
    });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), {.step = state.step, .decays = decayed});
      group->states.resize(state_names_.size());
    }
    group->parameters.push_back(parameter.value);
    group->gradients.push_back(gradient);
    for (std::size_t k = 0; k < state_names_.size(); ++k) {
      group->states[k].push_back(state.tensors[k]);
    }
  }
  const bool trains = std::any_of(parameters_.begin(), parameters_.end(),
                                  [](const auto& p) { return p->value.requires_grad(); });
  if (groups.empty() && trains) {
    fail(
        fmt::format("optimizer: none of the {} parameters has a gradient; call backward() before "
                    "step(), and zero_grad() after it",
                    parameters_.size()));
  }
  for (const Group& group : groups) {
    step_group(group, lr, grad_scale);
  }
}

void Optimizer::zero_grad() {
  for (const nn::ParameterPointer& parameter : parameters_) {
    parameter->value.grad() = Tensor();
  }
}

void Optimizer::prepare_state() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    state_of(i);
  }
}

StateDict Optimizer::state() const {
  StateDict dict;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t k = 0; k < states_[i].tensors.size(); ++k) {
      dict.tensors.emplace(state_names_[k] + "." + parameters_[i]->name, states_[i].tensors[k]);
    }
    dict.scalars.emplace("step." + parameters_[i]->name, states_[i].step);
  }
  return dict;
}

void Optimizer::load_scalars(const StateDict& state) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::string name = "step." + parameters_[i]->name;
    const auto found = state.scalars.find(name);
    if (found == state.scalars.end() || !std::holds_alternative<std::int64_t>(found->second)) {
      fail_input(
          fmt::format("optimizer: the saved state has no '{}'; it belongs to another model", name));
    }
    states_[i].step = std::get<std::int64_t>(found->second);
  }
}

std::unique_ptr<Optimizer> adamw(std::vector<nn::ParameterPointer> parameters,
                                 const AdamWOptions& options) {
  return std::make_unique<AdamW>(std::move(parameters), options);
}

std::unique_ptr<Optimizer> sgd(std::vector<nn::ParameterPointer> parameters,
                               const SgdOptions& options) {
  return std::make_unique<Sgd>(std::move(parameters), options);
}

}  // namespace tessera::optim
