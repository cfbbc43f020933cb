// LoRA: the model is frozen; linear layers get low-rank updates, which are trained. Options: rank =
// 8, alpha = 16, dropout = 0, rslora = false, dora = false. QLoRA: the layers' own weights are
// packed to 4 bits, too. It has one option more: base = "nf4" | "none" (as LoRA).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "lora_linear.hpp"
#include "nf4.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

nn::LowRankUpdate read_update(Options& options) {
  nn::LowRankUpdate update;
  update.rank = options.integer("rank", 8);
  if (update.rank < 1 || update.rank > 65536) {
    options.refuse(fmt::format("option 'rank' must be 1 to 65536 (got {})", update.rank));
  }
  update.alpha = options.number("alpha", 16, "a number more than 0",
                                [](double value) { return value > 0 && value < 1e9; });
  update.dropout = options.number("dropout", 0, "a number of at least 0 and less than 1",
                                  [](double value) { return value >= 0 && value < 1; });
  update.rank_stabilized = options.flag("rslora", false);
  update.dora = options.flag("dora", false);
  return update;
}

nn::LowRankUpdate read_packed_update(Options& options) {
  nn::LowRankUpdate update = read_update(options);
  if (options.choice("base", "nf4", {"nf4", "none"}) == "nf4") {
    update.packing = "nf4";
  }
  return update;
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
    return std::make_unique<LowRankUpdates>(read_update(options));
  });
  registrar.add<ParallelStyle>("QLoRA", [](Options& options) {
    return std::make_unique<LowRankUpdates>(read_packed_update(options));
  });
  registrar.add<OperatorPlugin>("nf4_dequantize", qlora::dequantize_op);
}
