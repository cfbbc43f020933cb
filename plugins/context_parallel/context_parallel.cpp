// ContextParallel: the ranks of the axis have different chunks of the same sequences. Everything
// that treats tokens on their own needs nothing; attention is replaced by one whose ranks exchange
// keys and values, or heads. Parameters are on every rank, and their gradients are Partial.
// Options: form = "auto" | "ring" | "all_to_all"; balance = true: of a causal ring; gflops = 50:
// what a rank computes in a second, for "auto".
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "context_attention.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

context::Form form_of(const std::string& name) {
  return name == "ring"         ? context::Form::ring
         : name == "all_to_all" ? context::Form::all_to_all
                                : context::Form::automatic;
}

class ContextParallel final : public ParallelStyle {
 public:
  explicit ContextParallel(Options& options) {
    settings_.form = form_of(options.choice("form", "auto", {"auto", "ring", "all_to_all"}));
    settings_.balance = options.flag("balance", true);
    settings_.flops = 1e9 * options.number("gflops", 50);
    if (!(settings_.flops > 0)) {
      options.refuse(
          fmt::format("option 'gflops' must be more than 0 (got {})", settings_.flops / 1e9));
    }
    settings_.decisions = std::make_shared<context::Decisions>();
  }

  StyleFacts facts() const override { return {.splits_sequence = true, .replaces_modules = true}; }

  std::shared_ptr<nn::Module> replace(const std::shared_ptr<nn::Module>& module) override {
    const auto whole = std::dynamic_pointer_cast<nn::InnerAttention>(module);
    if (!whole) {
      refuse(*module);
    }
    return std::make_shared<context::ContextAttention>(whole, settings_);
  }

  void apply(const StyleTarget& target) override {
    auto* const attention = dynamic_cast<context::ContextAttention*>(&target.module);
    if (attention == nullptr) {
      refuse(target.module);
    }
    attention->split_along(target.axis);
  }

  std::string decided() const override {
    std::string text;
    for (const std::string& one : settings_.decisions->texts) {
      text += (text.empty() ? "" : "; ") + one;
    }
    return text;
  }

 private:
  [[noreturn]] static void refuse(const nn::Module& module) {
    fail_input({.thing = module.name().empty() ? "the model itself"
                                               : fmt::format("module '{}'", module.name()),
                .wrong = "its sequences cannot be split",
                .expected = "an InnerAttention",
                .got = std::string(module.kind()),
                .advice = "match what computes attention: on = [\"**.inner_attention\"]"});
  }

  context::Settings settings_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("ContextParallel", [](Options& options) {
    return std::make_unique<ContextParallel>(options);
  });
}
