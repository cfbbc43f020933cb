module;
#include <fmt/format.h>

#include <cstdint>
#include <map>
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

bool decays(const nn::Parameter& parameter, Decay decay) {
  return decay == Decay::all || parameter.value.dims() >= 2;
}

class AdamW final : public Optimizer {
 public:
  AdamW(std::vector<nn::ParameterPointer> parameters, const AdamWOptions& options)
      : Optimizer(std::move(parameters)), options_(options) {}

 protected:
  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  void step_one(const nn::Parameter& parameter, const Tensor& gradient, State& state, double lr,
                double grad_scale) override {
    const ops::AdamWStep settings{
        .lr = lr,
        .beta1 = options_.beta1,
        .beta2 = options_.beta2,
        .eps = options_.eps,
        .weight_decay = decays(parameter, options_.decay) ? options_.weight_decay : 0,
        .grad_scale = grad_scale,
        .step = state.step};
    ops::adamw_(parameter.value, gradient, state.tensors["exp_avg"], state.tensors["exp_avg_sq"],
                settings);
  }

 private:
  AdamWOptions options_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<nn::ParameterPointer> parameters, const SgdOptions& options)
      : Optimizer(std::move(parameters)), options_(options) {}

 protected:
  std::vector<std::string> state_names() const override {
    return options_.momentum == 0 ? std::vector<std::string>{}
                                  : std::vector<std::string>{"momentum_buffer"};
  }
  void step_one(const nn::Parameter& parameter, const Tensor& gradient, State& state, double lr,
                double grad_scale) override {
    const ops::SgdStep settings{
        .lr = lr,
        .momentum = options_.momentum,
        .weight_decay = decays(parameter, options_.decay) ? options_.weight_decay : 0,
        .grad_scale = grad_scale,
        .nesterov = options_.nesterov,
        .first = state.step == 1};
    const Tensor buffer = options_.momentum == 0 ? Tensor() : state.tensors["momentum_buffer"];
    ops::sgd_(parameter.value, gradient, buffer, settings);
  }

 private:
  SgdOptions options_;
};

}  // namespace

Optimizer::Optimizer(std::vector<nn::ParameterPointer> parameters)
    : parameters_(std::move(parameters)), states_(parameters_.size()) {}

Optimizer::~Optimizer() = default;

Optimizer::State& Optimizer::state_of(std::size_t i) {
  State& state = states_[i];
  const std::vector<std::string> names = state_names();
  if (state.tensors.size() < names.size()) {
    const MemoryScope scope(MemoryCategory::optimizer);
    for (const std::string& name : names) {
      state.tensors[name] = ops::zeros_like(detached(parameters_[i]->value));
    }
  }
  return state;
}

void Optimizer::step(double lr, double grad_scale) {
  const NoGrad no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = *parameters_[i];
    const Tensor& gradient = parameter.value.grad();
    if (!gradient) {
      continue;
    }
    if (gradient.spec() != parameter.value.spec()) {
      fail(fmt::format(
          "optimizer: the gradient of '{}' is {}, the parameter {}; finish_gradients() of the "
          "parallel plan "
          "brings gradients to their parameters' layouts",
          parameter.name, gradient.spec() != nullptr ? to_string(*gradient.spec()) : "plain",
          parameter.value.spec() != nullptr ? to_string(*parameter.value.spec()) : "plain"));
    }
    State& state = state_of(i);
    ++state.step;
    step_one(parameter, gradient, state, lr, grad_scale);
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
    for (const auto& [name, tensor] : states_[i].tensors) {
      dict.tensors.emplace(name + "." + parameters_[i]->name, tensor);
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
