// A plugin that replaces the experts of a mixture in captured steps: each expert takes only so many
// tokens of a sequence, as many as fit into `room` times its equal share, and those that come later
// in the sequence do without it (Lepikhin et al., GShard, 2020, section 2.2, with sequences as
// groups). The model does not know of it, and its parameters stay where they are: checkpoints,
// exports and generation are those of the model. In a config:
//   [graph]
//   capture = true
//   transforms = ["Capacity"]
// docs/replaced-modules.md explains it.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.passes;

namespace {

using namespace tessera;

constexpr double room = 1.25;

/// Takes the place of experts, and has their parameters under the same names, so that styles find
/// and split them as before.
class LimitedExperts : public nn::Module {
 public:
  explicit LimitedExperts(std::shared_ptr<nn::Module> experts) : experts_(std::move(experts)) {
    for (const auto& [name, parameter] : experts_->parameters()) {
      add_parameter(name, parameter);
    }
    attach<nn::LayerSplits>().declared = [this] { return nn::splits_of(*experts_); };
  }

  std::string_view kind() const override { return "LimitedExperts"; }
  std::vector<std::string> input_names() const override { return experts_->input_names(); }

  /// Hidden states [sequences, tokens, dim], and weights and numbers of each token's experts,
  /// [sequences, tokens, experts per token].
  Tensors forward(const Tensors& inputs) override {
    const Tensor& chosen = input(inputs, 2);
    const Tensor& weights = input(inputs, 1);
    const std::int64_t rows = chosen.size(1) * chosen.size(2);
    const std::int64_t experts = parameters()[0].second->value.size(0);
    const auto capacity = static_cast<double>(static_cast<std::int64_t>(
        std::ceil(room * static_cast<double>(rows) / static_cast<double>(experts))));
    const Tensor marks = ops::one_hot(ops::reshape(chosen, {chosen.size(0), rows}), experts);
    const Tensor places = ops::sum(ops::mul(ops::cumsum(marks, 1), marks), {-1});  // from 1
    const Tensor fits = ops::reshape(ops::le(places, capacity), chosen.shape());
    return experts_->forward(
        {input(inputs, 0), ops::mul(weights, ops::cast(fits, weights.dtype())), chosen});
  }

 private:
  std::shared_ptr<nn::Module> experts_;
};

std::shared_ptr<nn::Module> replacement(const std::string& /*name*/,
                                        const std::shared_ptr<nn::Module>& module) {
  return module->kind() == "Experts" ? std::make_shared<LimitedExperts>(module) : nullptr;
}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<graph::Change>("Capacity", [] {
    return graph::Change{.name = "Capacity",
                         .about = "Limits how many tokens of a sequence an expert takes.",
                         // Without a limit, as this mixture is used afterwards.
                         .facts = {.evaluates_as_written = true},
                         .replacement = replacement};
  });
}
