// ContextParallel: the ranks of the axis have different chunks of the same sequences. Everything
// that treats tokens on their own needs nothing; attention is replaced by one whose ranks exchange
// keys and values, or heads. Parameters are on every rank, and their gradients are Partial.
// Options: see options_table.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.options;
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

const OptionTable<context::Options>& options_table() {
  using O = context::Options;
  static const auto table =
      OptionTable<O>()
          .words("form", &O::form,
                 {{"auto", context::ExchangeKind::automatic},
                  {"ring", context::ExchangeKind::ring},
                  {"all_to_all", context::ExchangeKind::all_to_all}},
                 "How ranks attend to each other's tokens. `auto`: the form that waits less, of "
                 "those that can be ([how it "
                 "chooses](context-parallel-forms.md#which-form)).")
          .add("balance", &O::balance,
               "Of a causal ring: whether ranks exchange halves of their chunks, so that all have "
               "the same work.")
          .add("gflops", &O::gflops,
               "For `auto`: 1e9 floating-point operations of a rank in a second.",
               {.low = 0, .low_open = true});
  return table;
}

class ContextParallel final : public ParallelStyle {
 public:
  explicit ContextParallel(Options& options)
      : settings_{options_table().read(options), std::make_shared<context::Decisions>()} {}

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
