// Float8: linear layers whose products are of 8-bit floating operands, with scales from the largest
// elements (torchao's recipes "tensorwise" and "rowwise"). The parameters stay what they are.
// Options: see options_table.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.options;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

#include "linear.hpp"

namespace {

using namespace tessera;
using namespace tessera::parallel;

struct Float8Options {
  float8::Scaling scaling = float8::Scaling::tensorwise;
  bool all_gather = false;
  bool turned_weights = false;
};

const OptionTable<Float8Options>& options_table() {
  using F = Float8Options;
  static const auto table =
      OptionTable<F>()
          .words(
              "scaling", &F::scaling,
              {{"tensorwise", float8::Scaling::tensorwise}, {"rowwise", float8::Scaling::rowwise}},
              "`tensorwise`: one scale for each operand; `rowwise`: one for each row or column "
              "of an operand.")
          .add("all_gather", &F::all_gather,
               "FSDP gathers 8-bit codes instead of values: a quarter of the bytes of f32, half of "
               "those of bf16. Tensor-wise scaling only.")
          .add("turned_weights", &F::turned_weights,
               "Codes of weights that are kept for a step are kept in both orders, for "
               "[GPUs](#orders-of-codes): a byte more for each element. Tensor-wise scaling only, "
               "and not with `all_gather`.");
  return table;
}

class Float8 final : public ParallelStyle {
 public:
  explicit Float8(Options& options) : options_(options), settings_(options_table().read(options)) {
    const bool rowwise = settings_.scaling == float8::Scaling::rowwise;
    if (rowwise && settings_.all_gather) {
      options.refuse(
          "option 'all_gather' needs scaling = \"tensorwise\": with row-wise scales, backward "
          "needs "
          "the weight with a scale for each column, which codes with a scale for each row do not "
          "have; set all_gather = false");
    }
    if (settings_.turned_weights && (rowwise || settings_.all_gather)) {
      options.refuse(fmt::format(
          "option 'turned_weights' is of the codes that are kept for a step, which {} are not; "
          "set turned_weights = false",
          rowwise ? "row-wise codes" : "gathered codes"));
    }
    weights_ = std::make_shared<float8::Weights>(settings_.scaling, settings_.turned_weights);
  }

  StyleFacts facts() const override {
    return {.replaces_modules = true, .extends_gathers = settings_.all_gather, .most_axes = 0};
  }

  std::shared_ptr<nn::Module> replace(const std::shared_ptr<nn::Module>& module) override {
    float8::check_replaceable(*module);
    return std::make_shared<float8::Float8Linear>(module, weights_);
  }

  void apply(const StyleTarget& target) override {
    const auto* const layer = dynamic_cast<const float8::Float8Linear*>(&target.module);
    if (layer == nullptr) {
      float8::check_replaceable(target.module);
      fail_input({.thing = "Float8",
                  .wrong = "the model itself cannot be replaced",
                  .expected = "linear layers inside a model",
                  .advice = "match its linear layers"});
    }
    weights_->add(layer->weight(), target.mesh);
    if (!settings_.all_gather) {
      return;
    }
    const nn::ParameterPointer& weight = layer->weight()->parameter;
    if (!weight->other_names.empty()) {
      options_.refuse(fmt::format(
          "option 'all_gather': parameter '{}' is tied to '{}', which needs its values; "
          "leave the layer out of 'on', or set all_gather = false",
          weight->name, weight->other_names.front()));
    }
    set_extension(*weight, std::make_shared<float8::CodesExtension>(weights_, layer->weight()),
                  target.entry);
  }

  void before_optimizer() override { weights_->drop_codes(); }
  void after_optimizer() override { weights_->refresh(); }

 private:
  Options options_;
  Float8Options settings_;
  std::shared_ptr<float8::Weights> weights_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("Float8",
                               [](Options& options) { return std::make_unique<Float8>(options); });
}
