module;
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.tensor;
import tessera.ops;

namespace tessera::optim {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<UpdateRule>();

class AdamW final : public UpdateRule {
 public:
  explicit AdamW(const AdamWOptions& options) : options_(options) {}

  std::vector<StateTensor> states() const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }
  void update(const UpdateGroup& group) override {
    ops::adamw_(group.parameters, group.gradients, group.states[0], group.states[1],
                {.lr = group.lr,
                 .beta1 = options_.beta1,
                 .beta2 = options_.beta2,
                 .eps = options_.eps,
                 .weight_decay = group.weight_decay,
                 .grad_scale = group.grad_scale,
                 .step = group.step});
  }

 private:
  AdamWOptions options_;
};

class Sgd final : public UpdateRule {
 public:
  explicit Sgd(const SgdOptions& options) : options_(options) {}

  std::vector<StateTensor> states() const override {
    return options_.momentum == 0 ? std::vector<StateTensor>{}
                                  : std::vector<StateTensor>{{"momentum_buffer"}};
  }
  void update(const UpdateGroup& group) override {
    const std::vector<Tensor> none(group.states.empty() ? group.parameters.size() : 0);
    ops::sgd_(group.parameters, group.gradients, group.states.empty() ? none : group.states[0],
              {.lr = group.lr,
               .momentum = options_.momentum,
               .weight_decay = group.weight_decay,
               .grad_scale = group.grad_scale,
               .nesterov = options_.nesterov,
               .first = group.step == 1});
  }

 private:
  SgdOptions options_;
};

bool below_one(double x) { return x >= 0 && x < 1; }

std::unique_ptr<UpdateRule> read_adamw(PluginOptions& options) {
  const std::vector<double> betas =
      options.numbers("betas", {AdamWOptions{}.beta1, AdamWOptions{}.beta2},
                      "two numbers of at least 0 and less than 1", below_one);
  const double eps = options.number("eps", AdamWOptions{}.eps, "a number more than 0",
                                    [](double x) { return x > 0; });
  return adamw_rule({.beta1 = betas[0], .beta2 = betas[1], .eps = eps});
}

std::unique_ptr<UpdateRule> read_sgd(PluginOptions& options) {
  const double momentum =
      options.number("momentum", 0, "a number of at least 0 and less than 1", below_one);
  const bool nesterov = options.flag("nesterov", false);
  if (nesterov && momentum == 0) {
    options.refuse("nesterov needs a momentum above 0");
  }
  return sgd_rule({.momentum = momentum, .nesterov = nesterov});
}

const std::map<std::string, UpdateRule::Factory, std::less<>>& built_in() {
  static const std::map<std::string, UpdateRule::Factory, std::less<>> rules = {
      {"adamw", read_adamw}, {"sgd", read_sgd}};
  return rules;
}

}  // namespace

UpdateRule::~UpdateRule() = default;

std::unique_ptr<UpdateRule> adamw_rule(const AdamWOptions& options) {
  return std::make_unique<AdamW>(options);
}

std::unique_ptr<UpdateRule> sgd_rule(const SgdOptions& options) {
  return std::make_unique<Sgd>(options);
}

std::vector<std::string> built_in_rules() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : built_in()) {
    names.push_back(name);
  }
  return names;
}

void check_rule_name(std::string_view name, const std::string& where) {
  if (built_in().contains(name)) {
    return;  // a program without plugins has no host
  }
  std::vector<std::string> known = plugin::host().names(UpdateRule::plugin_kind.name);
  std::ranges::move(built_in_rules(), std::back_inserter(known));
  if (std::ranges::find(known, name) == known.end()) {
    std::ranges::sort(known);
    fail_input({.thing = where,
                .wrong = fmt::format("there is no optimizer '{}' (there are {}){}", name,
                                     join_words(known), did_you_mean(name, known)),
                .advice = "'tessera plugin list' shows the plugins"});
  }
}

std::unique_ptr<UpdateRule> load_rule(std::string_view name, std::string_view text,
                                      const std::string& where) {
  check_rule_name(name);
  const auto found = built_in().find(name);
  const UpdateRule::Factory& factory =
      found != built_in().end() ? found->second : plugin::host().find<UpdateRule>(name);
  PluginOptions options(text, where);
  std::unique_ptr<UpdateRule> rule = factory(options);
  options.finish();
  if (!rule) {
    fail_input(
        {.thing = fmt::format("optimizer '{}'", name), .wrong = "its plugin returned no object"});
  }
  return rule;
}

}  // namespace tessera::optim
