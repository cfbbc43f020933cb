module;
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.tensor;
import tessera.ops;
import :elementwise;

namespace tessera::optim {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<UpdateRule>();

}  // namespace

UpdateRule::~UpdateRule() = default;

Tensor make_state(const StateTensor& state, const Tensor& parameter) {
  if (state.make) {
    return state.make(parameter);
  }
  const DType dtype = state.dtype.value_or(parameter.dtype());
  return ops::zeros_like(dtype == parameter.dtype() ? parameter : ops::cast(parameter, dtype));
}

bool UpdateRule::takes(const Dims& /*shape*/) const { return true; }

bool UpdateRule::takes_type(DType dtype) const {
  return dtype == DType::f32 || dtype == DType::f64;
}

bool UpdateRule::is_elementwise() const { return false; }

UpdateRule::Fallback UpdateRule::fallback() const { return {}; }

std::vector<std::string> built_in_rules() { return elementwise_rules(); }

void check_rule_name(std::string_view name, const std::string& where) {
  if (elementwise_rule(name) != nullptr) {
    return;  // a program without plugins has no host
  }
  std::vector<std::string> known = plugin::host().names(UpdateRule::plugin_kind.name);
  std::ranges::move(built_in_rules(), std::back_inserter(known));
  if (name == "lbfgs") {
    fail_input({.thing = where,
                .wrong = "lbfgs evaluates the loss several times in a step, which a run does not",
                .advice = "use optim::Lbfgs in a program of your own"});
  }
  if (std::ranges::find(known, name) == known.end()) {
    std::ranges::sort(known);
    fail_input({.thing = where,
                .wrong = fmt::format("there is no optimizer '{}' (there are {}){}", shown(name),
                                     join_words(known), did_you_mean(name, known)),
                .advice = "'tessera plugin list' shows the plugins"});
  }
}

std::unique_ptr<UpdateRule> load_rule(std::string_view name, std::string_view text,
                                      const std::string& where) {
  check_rule_name(name);
  PluginOptions options(text, where);
  std::unique_ptr<UpdateRule> rule = load_rule(name, options);
  options.finish();
  return rule;
}

std::unique_ptr<UpdateRule> load_rule(std::string_view name, PluginOptions& options) {
  check_rule_name(name);
  const UpdateRule::Factory* const built_in = elementwise_rule(name);
  const UpdateRule::Factory& factory =
      built_in != nullptr ? *built_in : plugin::host().find<UpdateRule>(name);
  std::unique_ptr<UpdateRule> rule = factory(options);
  if (!rule) {
    fail_input(
        {.thing = fmt::format("optimizer '{}'", name), .wrong = "its plugin returned no object"});
  }
  return rule;
}

}  // namespace tessera::optim
