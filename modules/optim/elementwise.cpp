module;
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.options;
import tessera.tensor;
import tessera.ops;
import :elementwise;

namespace tessera::optim {
namespace {

/// A rule that is one operator over lists: its settings, and the names of the operator's states,
/// null for those that the settings do not need.
template <auto update_lists, class Settings, std::size_t count>
class ListRule : public UpdateRule {
 public:
  ListRule(const Settings& settings, const char* const (&names)[count]) : settings_(settings) {
    for (std::size_t k = 0; k < count; ++k) {
      names_[k] = names[k];
    }
  }

  std::vector<StateTensor> states() const override {
    std::vector<StateTensor> all;
    for (const char* const name : names_) {
      if (name != nullptr) {
        all.push_back({.name = name});
      }
    }
    return all;
  }

  bool is_elementwise() const override { return true; }

  void update(const UpdateGroup& group) override {
    const std::vector<Tensor> none(group.parameters.size());
    ops::TensorList lists[count];
    std::size_t given = 0;
    for (std::size_t k = 0; k < count; ++k) {
      lists[k] = names_[k] != nullptr ? ops::TensorList(group.states[given++]) : none;
    }
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      update_lists(group.parameters, group.gradients, lists[k]..., of(group));
    }(std::make_index_sequence<count>());
  }

 protected:
  /// The settings of a group's step.
  Settings of(const UpdateGroup& group) const {
    Settings settings = settings_;
    settings.lr = group.lr;
    settings.weight_decay = group.weight_decay;
    settings.grad_scale = group.grad_scale;
    if constexpr (requires { settings.step; }) {
      settings.step = group.step;
    }
    return settings;
  }

 private:
  Settings settings_;
  const char* names_[count];
};

/// Also updates parameters in bf16.
class AdamW final : public ListRule<ops::adamw_, ops::AdamStep, 3> {
 public:
  using ListRule::ListRule;

  bool takes_type(DType dtype) const override {
    return dtype == DType::bf16 || ListRule::takes_type(dtype);
  }

  void update(const UpdateGroup& group) override {
    if (group.parameters[0].dtype() == DType::bf16) {
      update_rounded(of(group), group);
    } else {
      ListRule::update(group);
    }
  }
};

template <auto update_lists, class Settings, std::size_t count>
std::unique_ptr<UpdateRule> list_rule(const Settings& settings,
                                      const char* const (&states)[count]) {
  return std::make_unique<ListRule<update_lists, Settings, count>>(settings, states);
}

// The options have torch's names, and torch's defaults except betas of adamw.

bool below_one(double x) { return x >= 0 && x < 1; }
bool not_negative(double x) { return x >= 0; }
bool positive(double x) { return x > 0; }

double share(PluginOptions& options, const std::string& name, double otherwise) {
  return options.number(name, otherwise, "a number of at least 0 and less than 1", below_one);
}
double amount(PluginOptions& options, const std::string& name, double otherwise) {
  return options.number(name, otherwise, "a number of at least 0", not_negative);
}
double above_zero(PluginOptions& options, const std::string& name, double otherwise) {
  return options.number(name, otherwise, "a number more than 0", positive);
}
std::vector<double> betas(PluginOptions& options, const std::vector<double>& otherwise) {
  return options.numbers("betas", otherwise, "two numbers of at least 0 and less than 1",
                         below_one);
}
bool maximize(PluginOptions& options) { return options.flag("maximize", false); }

template <class Rule>
std::unique_ptr<UpdateRule> adam_rule(const AdamWOptions& options) {
  const char* const states[] = {"exp_avg", "exp_avg_sq",
                                options.amsgrad ? "max_exp_avg_sq" : nullptr};
  return std::make_unique<Rule>(ops::AdamStep{.beta1 = options.beta1,
                                              .beta2 = options.beta2,
                                              .eps = options.eps,
                                              .amsgrad = options.amsgrad,
                                              .maximize = options.maximize},
                                states);
}

/// The settings that Adam and its relatives have in common.
template <class Settings>
Settings with_moments(PluginOptions& options, double beta2) {
  const std::vector<double> both = betas(options, {0.9, beta2});
  Settings settings;
  settings.beta1 = both[0];
  settings.beta2 = both[1];
  settings.eps = above_zero(options, "eps", 1e-8);
  settings.maximize = maximize(options);
  return settings;
}

AdamWOptions adam_options(PluginOptions& options, double beta2) {
  auto settings = with_moments<AdamWOptions>(options, beta2);
  settings.amsgrad = options.flag("amsgrad", false);
  return settings;
}

/// Whether the moments are 8-bit codes.
bool quantized(PluginOptions& options, const AdamWOptions& read) {
  const std::int64_t bits = options.integer("state_bits", 32);
  if (bits != 8 && bits != 32) {
    options.refuse("state_bits must be 8 or 32");
  }
  if (bits == 8 && read.amsgrad) {
    options.refuse("amsgrad has no 8-bit state; set one of the two");
  }
  return bits == 8;
}

std::unique_ptr<UpdateRule> read_adam(PluginOptions& options) {
  const AdamWOptions read = adam_options(options, 0.999);
  return quantized(options, read) ? adam_8bit_rule(read, false)
                                  : adam_rule<ListRule<ops::adam_, ops::AdamStep, 3>>(read);
}

std::unique_ptr<UpdateRule> read_adamw(PluginOptions& options) {
  const AdamWOptions read = adam_options(options, AdamWOptions{}.beta2);
  return quantized(options, read) ? adam_8bit_rule(read, true) : adamw_rule(read);
}

std::unique_ptr<UpdateRule> read_sgd(PluginOptions& options) {
  const SgdOptions read{.momentum = share(options, "momentum", 0),
                        .nesterov = options.flag("nesterov", false),
                        .dampening = options.number("dampening", 0),
                        .maximize = maximize(options)};
  if (read.nesterov && (read.momentum == 0 || read.dampening != 0)) {
    options.refuse("nesterov needs a momentum above 0 and no dampening");
  }
  return sgd_rule(read);
}

std::unique_ptr<UpdateRule> read_adagrad(PluginOptions& options) {
  return list_rule<ops::adagrad_>(
      ops::AdagradStep{.lr_decay = amount(options, "lr_decay", 0),
                       .eps = above_zero(options, "eps", 1e-10),
                       .initial = amount(options, "initial_accumulator_value", 0),
                       .maximize = maximize(options)},
      {"sum"});
}

std::unique_ptr<UpdateRule> read_adadelta(PluginOptions& options) {
  return list_rule<ops::adadelta_>(ops::AdadeltaStep{.rho = share(options, "rho", 0.9),
                                                     .eps = above_zero(options, "eps", 1e-6),
                                                     .maximize = maximize(options)},
                                   {"square_avg", "acc_delta"});
}

std::unique_ptr<UpdateRule> read_adamax(PluginOptions& options) {
  return list_rule<ops::adamax_>(with_moments<ops::AdamaxStep>(options, 0.999),
                                 {"exp_avg", "exp_inf"});
}

std::unique_ptr<UpdateRule> read_nadam(PluginOptions& options) {
  auto settings = with_moments<ops::NAdamStep>(options, 0.999);
  settings.momentum_decay = amount(options, "momentum_decay", 4e-3);
  settings.decoupled = options.flag("decoupled_weight_decay", false);
  return list_rule<ops::nadam_>(settings, {"exp_avg", "exp_avg_sq"});
}

std::unique_ptr<UpdateRule> read_radam(PluginOptions& options) {
  auto settings = with_moments<ops::RAdamStep>(options, 0.999);
  settings.decoupled = options.flag("decoupled_weight_decay", false);
  return list_rule<ops::radam_>(settings, {"exp_avg", "exp_avg_sq"});
}

std::unique_ptr<UpdateRule> read_rmsprop(PluginOptions& options) {
  const ops::RMSpropStep settings{.alpha = share(options, "alpha", 0.99),
                                  .eps = above_zero(options, "eps", 1e-8),
                                  .momentum = amount(options, "momentum", 0),
                                  .centered = options.flag("centered", false),
                                  .maximize = maximize(options)};
  return list_rule<ops::rmsprop_>(
      settings, {"square_avg", settings.momentum != 0 ? "momentum_buffer" : nullptr,
                 settings.centered ? "grad_avg" : nullptr});
}

std::unique_ptr<UpdateRule> read_rprop(PluginOptions& options) {
  const std::vector<double> etas =
      options.numbers("etas", {0.5, 1.2}, "two numbers more than 0", positive);
  const std::vector<double> sizes =
      options.numbers("step_sizes", {1e-6, 50}, "two numbers of at least 0", not_negative);
  if (!(etas[0] < 1 && etas[1] > 1)) {
    options.refuse("etas must be a number below 1 and a number above 1");
  }
  if (sizes[0] > sizes[1]) {
    options.refuse("step_sizes must be the smallest and the largest step size");
  }
  return list_rule<ops::rprop_>(ops::RpropStep{.decrease = etas[0],
                                               .increase = etas[1],
                                               .smallest = sizes[0],
                                               .largest = sizes[1],
                                               .maximize = maximize(options)},
                                {"prev", "step_size"});
}

std::unique_ptr<UpdateRule> read_asgd(PluginOptions& options) {
  return list_rule<ops::asgd_>(ops::AsgdStep{.lambd = amount(options, "lambd", 1e-4),
                                             .alpha = amount(options, "alpha", 0.75),
                                             .t0 = amount(options, "t0", 1e6),
                                             .maximize = maximize(options)},
                               {"ax"});
}

std::unique_ptr<UpdateRule> read_lion(PluginOptions& options) {
  const std::vector<double> both = betas(options, {0.9, 0.99});
  return list_rule<ops::lion_>(
      ops::LionStep{.beta1 = both[0], .beta2 = both[1], .maximize = maximize(options)},
      {"exp_avg"});
}

const std::map<std::string, UpdateRule::Factory, std::less<>>& factories() {
  static const std::map<std::string, UpdateRule::Factory, std::less<>> all = {
      {"adadelta", read_adadelta}, {"adagrad", read_adagrad}, {"adam", read_adam},
      {"adamax", read_adamax},     {"adamw", read_adamw},     {"asgd", read_asgd},
      {"lion", read_lion},         {"nadam", read_nadam},     {"radam", read_radam},
      {"rmsprop", read_rmsprop},   {"rprop", read_rprop},     {"sgd", read_sgd}};
  return all;
}

}  // namespace

std::unique_ptr<UpdateRule> adamw_rule(const AdamWOptions& options) {
  return adam_rule<AdamW>(options);
}

std::unique_ptr<UpdateRule> sgd_rule(const SgdOptions& options) {
  return list_rule<ops::sgd_>(ops::SgdStep{.momentum = options.momentum,
                                           .dampening = options.dampening,
                                           .nesterov = options.nesterov,
                                           .maximize = options.maximize},
                              {options.momentum != 0 ? "momentum_buffer" : nullptr});
}

const UpdateRule::Factory* elementwise_rule(std::string_view name) {
  const auto found = factories().find(name);
  return found == factories().end() ? nullptr : &found->second;
}

std::vector<std::string> elementwise_rules() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) {
    names.push_back(name);
  }
  return names;
}

}  // namespace tessera::optim
