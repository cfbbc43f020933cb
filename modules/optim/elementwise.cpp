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

namespace tessera {

// Settings of operators as options.
inline void read_option(PluginOptions& options, const OptionKey& key, Dynamic<double>& value) {
  read_option(options, key, value.value);
}
inline std::string option_json(const Dynamic<double>& value) { return option_json(value.value); }

}  // namespace tessera

namespace tessera::optim {
namespace {

/// A rule that is one operator over lists: the operator's settings, and the names of its states,
/// null for those that the settings do not need.
template <class Settings>
class ListRule : public UpdateRule {
 public:
  ListRule(std::string_view op, const Settings& settings, std::vector<const char*> names)
      : op_(find_op(op)), settings_(settings), names_(std::move(names)) {}

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
    std::vector<Tensor> lists = group.parameters;
    lists.insert(lists.end(), group.gradients.begin(), group.gradients.end());
    std::size_t given = 0;
    for (const char* const name : names_) {
      if (name == nullptr) {
        lists.resize(lists.size() + group.parameters.size());
      } else {
        const std::vector<Tensor>& state = group.states[given++];
        lists.insert(lists.end(), state.begin(), state.end());
      }
    }
    if (!lists.empty()) {
      const NoGrad constant;
      call(op_, lists, of(group));
    }
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
  const Op& op_;
  Settings settings_;
  std::vector<const char*> names_;
};

/// Also updates parameters in bf16.
class AdamW final : public ListRule<ops::AdamStep> {
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

template <class Settings>
std::unique_ptr<UpdateRule> list_rule(std::string_view op, const Settings& settings,
                                      std::vector<const char*> states) {
  return std::make_unique<ListRule<Settings>>(op, settings, std::move(states));
}

// The options have torch's names, and torch's defaults except betas of adamw. They are the fields
// of the operator's settings.

constexpr Range share{.low = 0, .high = 1, .high_open = true};
constexpr Range not_negative{.low = 0};
constexpr Range positive{.low = 0, .low_open = true};

/// Two settings that are one option.
template <class Value>
struct Pair {
  Value& first;
  Value& second;
  const char* expected;
  bool (*fits)(double);
};
template <class Value>
Pair(Value&, Value&, const char*, bool (*)(double)) -> Pair<Value>;

constexpr auto betas = [](auto& s) {
  return Pair{s.beta1, s.beta2, "two numbers of at least 0 and less than 1",
              [](double x) { return x >= 0 && x < 1; }};
};

template <class Value>
void read_option(PluginOptions& options, const OptionKey& key, const Pair<Value>& pair) {
  const std::vector<double> both =
      options.numbers(key.name, {pair.first, pair.second}, pair.expected, pair.fits);
  pair.first = both[0];
  pair.second = both[1];
}

template <class Value>
std::string option_json(const Pair<Value>& pair) {
  OptionsText both;
  both.add(tessera::option_json(static_cast<double>(pair.first)));
  both.add(tessera::option_json(static_cast<double>(pair.second)));
  return both.list();
}

/// The options that all have.
template <class Settings>
OptionTable<Settings> common() {
  return OptionTable<Settings>().add("maximize", &Settings::maximize,
                                     "Whether the loss is maximised.");
}

/// The options that Adam and its relatives have in common.
template <class Settings>
OptionTable<Settings> with_moments() {
  return common<Settings>()
      .add("betas", betas, "Weights of the averages of gradients and of their squares.")
      .add("eps", &Settings::eps, "Added to the denominator.", positive);
}

const char* const decoupled = "Whether weight_decay multiplies the parameter.";

std::unique_ptr<UpdateRule> adam_rule(const AdamWOptions& options, bool of_bf16) {
  const ops::AdamStep settings{.beta1 = options.beta1,
                               .beta2 = options.beta2,
                               .eps = options.eps,
                               .amsgrad = options.amsgrad,
                               .maximize = options.maximize};
  const std::vector<const char*> states = {"exp_avg", "exp_avg_sq",
                                           options.amsgrad ? "max_exp_avg_sq" : nullptr};
  if (of_bf16) {
    return std::make_unique<AdamW>("adamw_", settings, states);
  }
  return list_rule("adam_", settings, states);
}

std::unique_ptr<UpdateRule> read_adam(PluginOptions& options, double beta2, bool is_adamw) {
  const AdamWOptions read =
      with_moments<AdamWOptions>()
          .add("amsgrad", &AdamWOptions::amsgrad, "Whether the largest average of squares counts.")
          .read(options, {.beta2 = beta2});
  const std::int64_t bits = options.integer("state_bits", 32);
  if (bits != 8 && bits != 32) {
    options.refuse("state_bits must be 8 or 32");
  }
  if (bits == 8 && read.amsgrad) {
    options.refuse("amsgrad has no 8-bit state; set one of the two");
  }
  return bits == 8 ? adam_8bit_rule(read, is_adamw) : adam_rule(read, is_adamw);
}

std::unique_ptr<UpdateRule> read_sgd(PluginOptions& options) {
  using S = SgdOptions;
  const S read = common<S>()
                     .add("momentum", &S::momentum, "Weight of the updates before.", share)
                     .add("nesterov", &S::nesterov, "Whether the momentum is looked ahead.")
                     .add("dampening", &S::dampening, "What the gradient lacks in the momentum.")
                     .read(options);
  if (read.nesterov && (read.momentum == 0 || read.dampening != 0)) {
    options.refuse("nesterov needs a momentum above 0 and no dampening");
  }
  return sgd_rule(read);
}

std::unique_ptr<UpdateRule> read_adagrad(PluginOptions& options) {
  using S = ops::AdagradStep;
  return list_rule("adagrad_",
                   common<S>()
                       .add("lr_decay", &S::lr_decay, "Decay of the learning rate.", not_negative)
                       .add("eps", &S::eps, "Added to the denominator.", positive)
                       .add("initial_accumulator_value", &S::initial,
                            "What sums of squares begin with.", not_negative)
                       .read(options, {.eps = 1e-10}),
                   {"sum"});
}

std::unique_ptr<UpdateRule> read_adadelta(PluginOptions& options) {
  using S = ops::AdadeltaStep;
  return list_rule("adadelta_",
                   common<S>()
                       .add("rho", &S::rho, "Weight of the averages before.", share)
                       .add("eps", &S::eps, "Added below the roots.", positive)
                       .read(options, {.rho = 0.9, .eps = 1e-6}),
                   {"square_avg", "acc_delta"});
}

std::unique_ptr<UpdateRule> read_adamax(PluginOptions& options) {
  return list_rule(
      "adamax_",
      with_moments<ops::AdamaxStep>().read(options, {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}),
      {"exp_avg", "exp_inf"});
}

std::unique_ptr<UpdateRule> read_nadam(PluginOptions& options) {
  using S = ops::NAdamStep;
  return list_rule(
      "nadam_",
      with_moments<S>()
          .add("momentum_decay", &S::momentum_decay, "How fast the momentum grows.", not_negative)
          .add("decoupled_weight_decay", &S::decoupled, decoupled)
          .read(options, {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .momentum_decay = 4e-3}),
      {"exp_avg", "exp_avg_sq"});
}

std::unique_ptr<UpdateRule> read_radam(PluginOptions& options) {
  using S = ops::RAdamStep;
  return list_rule("radam_",
                   with_moments<S>()
                       .add("decoupled_weight_decay", &S::decoupled, decoupled)
                       .read(options, {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}),
                   {"exp_avg", "exp_avg_sq"});
}

std::unique_ptr<UpdateRule> read_rmsprop(PluginOptions& options) {
  using S = ops::RMSpropStep;
  const S settings =
      common<S>()
          .add("alpha", &S::alpha, "Weight of the average of squares before.", share)
          .add("eps", &S::eps, "Added to the denominator.", positive)
          .add("momentum", &S::momentum, "Weight of the updates before.", not_negative)
          .add("centered", &S::centered, "Whether the gradient's average is subtracted.")
          .read(options, {.alpha = 0.99, .eps = 1e-8});
  return list_rule("rmsprop_", settings,
                   {"square_avg", settings.momentum != 0 ? "momentum_buffer" : nullptr,
                    settings.centered ? "grad_avg" : nullptr});
}

std::unique_ptr<UpdateRule> read_rprop(PluginOptions& options) {
  using S = ops::RpropStep;
  const auto etas = [](auto& s) {
    return Pair{s.decrease, s.increase, "two numbers more than 0", [](double x) { return x > 0; }};
  };
  const auto sizes = [](auto& s) {
    return Pair{s.smallest, s.largest, "two numbers of at least 0",
                [](double x) { return x >= 0; }};
  };
  const S settings =
      common<S>()
          .add("etas", etas, "What a step size is multiplied by, to decrease and to increase.")
          .add("step_sizes", sizes, "The smallest and the largest.")
          .read(options, {.decrease = 0.5, .increase = 1.2, .smallest = 1e-6, .largest = 50});
  if (!(settings.decrease < 1 && settings.increase > 1)) {
    options.refuse("etas must be a number below 1 and a number above 1");
  }
  if (settings.smallest > settings.largest) {
    options.refuse("step_sizes must be the smallest and the largest step size");
  }
  return list_rule("rprop_", settings, {"prev", "step_size"});
}

std::unique_ptr<UpdateRule> read_asgd(PluginOptions& options) {
  using S = ops::AsgdStep;
  return list_rule("asgd_",
                   common<S>()
                       .add("lambd", &S::lambd, "Decay of parameter and rate.", not_negative)
                       .add("alpha", &S::alpha, "Power of the rate's decay.", not_negative)
                       .add("t0", &S::t0, "Step at which averaging begins.", not_negative)
                       .read(options, {.lambd = 1e-4, .alpha = 0.75, .t0 = 1e6}),
                   {"ax"});
}

std::unique_ptr<UpdateRule> read_lion(PluginOptions& options) {
  using S = ops::LionStep;
  return list_rule("lion_",
                   common<S>()
                       .add("betas", betas, "Weights of the average, in the update and afterwards.")
                       .read(options, {.beta1 = 0.9, .beta2 = 0.99}),
                   {"exp_avg"});
}

const std::map<std::string, UpdateRule::Factory, std::less<>>& factories() {
  static const std::map<std::string, UpdateRule::Factory, std::less<>> all = {
      {"adadelta", read_adadelta},
      {"adagrad", read_adagrad},
      {"adam", [](PluginOptions& options) { return read_adam(options, 0.999, false); }},
      {"adamax", read_adamax},
      {"adamw",
       [](PluginOptions& options) { return read_adam(options, AdamWOptions{}.beta2, true); }},
      {"asgd", read_asgd},
      {"lion", read_lion},
      {"nadam", read_nadam},
      {"radam", read_radam},
      {"rmsprop", read_rmsprop},
      {"rprop", read_rprop},
      {"sgd", read_sgd}};
  return all;
}

}  // namespace

std::unique_ptr<UpdateRule> adamw_rule(const AdamWOptions& options) {
  return adam_rule(options, true);
}

std::unique_ptr<UpdateRule> sgd_rule(const SgdOptions& options) {
  return list_rule("sgd_",
                   ops::SgdStep{.momentum = options.momentum,
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
