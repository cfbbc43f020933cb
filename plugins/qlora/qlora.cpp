// LoRA: the model is frozen; linear layers get low-rank updates, which are trained. QLoRA: the
// layers' own weights are packed to 4 bits, too. Options: see lora_table and qlora_table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.nf4;
import tessera.options;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "lora_linear.hpp"
#include "nf4.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

OptionTable<nn::LowRankUpdate> lora_table() {
  using U = nn::LowRankUpdate;
  return OptionTable<U>()
      .add("rank", &U::rank, "Of the update.", {.low = 1, .high = 65536})
      .add("alpha", &U::alpha, "The update is multiplied by `alpha / rank`.",
           {.low = 0, .high = 1e9, .low_open = true, .high_open = true})
      .add("dropout", &U::dropout, "Of the update's input, while training.",
           {.low = 0, .high = 1, .high_open = true})
      .add("rslora", &U::rank_stabilized, "Multiply by `alpha / sqrt(rank)` instead.")
      .add("dora", &U::dora,
           "Scale each row of `W + scale B A` to a trained length "
           "([DoRA](https://arxiv.org/abs/2402.09353)), as PEFT computes it.");
}

OptionTable<nn::LowRankUpdate> qlora_table() {
  return lora_table().words("base", &nn::LowRankUpdate::packing, {{"nf4", "nf4"}, {"none", ""}},
                            "How the layer's own weight is kept: `nf4`, or `none`: as it is.");
}

class LowRankUpdates final : public ParallelStyle {
 public:
  explicit LowRankUpdates(nn::LowRankUpdate update) : update_(std::move(update)) {}

  StyleFacts facts() const override {
    return {.replaces_modules = true,
            .freezes_model = true,
            .follows_virtual_shards = true,
            .most_axes = 0};
  }

  std::shared_ptr<nn::Module> replace(const std::shared_ptr<nn::Module>& module) override {
    if (module->kind() != "Linear") {
      return nullptr;  // apply() refuses it
    }
    const nn::Parameter& weight = *module->parameter("weight");
    if (!weight.other_names.empty()) {
      const std::string own = module->name() + ".weight";
      std::vector<std::string> others = {weight.name};
      others.insert(others.end(), weight.other_names.begin(), weight.other_names.end());
      std::erase(others, own);
      fail_input({.thing = fmt::format("module '{}'", module->name()),
                  .wrong = fmt::format("its weight '{}' is also '{}', so an update of this layer "
                                       "could not be merged into it",
                                       own, fmt::join(others, "' and '")),
                  .advice = "let 'on' match other layers"});
    }
    const auto layer = std::make_shared<qlora::LoraLinear>(*module, update_);
    if (const auto dtype = weight.attached<ComputedForm>().dtype) {
      set_precision(*layer, {.parameters = dtype, .cast_inputs = false});
    }
    return layer;
  }

  void apply(const StyleTarget& target) override {
    auto* const layer = dynamic_cast<qlora::LoraLinear*>(&target.module);
    if (layer == nullptr) {
      fail_input({.where = target.entry,
                  .wrong = fmt::format("{} cannot get a low-rank update",
                                       target.module.name().empty()
                                           ? "the whole model"
                                           : fmt::format("module '{}'", target.module.name())),
                  .expected = "a Linear",
                  .got = fmt::format("a {}", target.module.kind()),
                  .advice = "let 'on' match linear layers only"});
    }
    layers_.push_back(layer);
  }

  void initialized() override {
    if (update_.dora) {
      for (qlora::LoraLinear* const layer : layers_) {
        layer->set_magnitude();
      }
    }
  }

 private:
  nn::LowRankUpdate update_;
  std::vector<qlora::LoraLinear*> layers_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("LoRA", [](Options& options) {
    return std::make_unique<LowRankUpdates>(lora_table().read(options, {.rank = 8, .alpha = 16}));
  });
  registrar.add<ParallelStyle>("QLoRA", [](Options& options) {
    return std::make_unique<LowRankUpdates>(
        qlora_table().read(options, {.rank = 8, .alpha = 16, .packing = "nf4"}));
  });
  registrar.add<OperatorPlugin>("nf4_dequantize", qlora::dequantize_op);
}
