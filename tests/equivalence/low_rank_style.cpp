// A style for the tests of adapters: linear layers that train a low-rank update, as a plugin of
// somebody else may have them. The formats must work for any layer that declares its update.
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.plugin;
import tessera.parallel;

namespace {

using namespace tessera;
using namespace tessera::parallel;

nn::ParameterPointer parameter_of(const Dims& shape, nn::Initialization::Kind kind,
                                  double deviation = 0) {
  return std::make_shared<nn::Parameter>(shape, DType::f32, nn::Initialization{kind, deviation});
}

class Layer final : public nn::Module {
 public:
  Layer(const nn::Module& before, const nn::LowRankUpdate& update) : update_(update) {
    const nn::ParameterPointer& weight = before.parameter("weight");
    weight->value.set_requires_grad(false);
    const Dims shape = weight->value.shape();
    add_parameter("weight", weight);
    add_parameter("lora_A",
                  parameter_of({update.rank, shape[1]}, nn::Initialization::Kind::normal, 0.1));
    add_parameter("lora_B", parameter_of({shape[0], update.rank}, nn::Initialization::Kind::zeros));
    if (update.dora) {
      add_parameter("magnitude", parameter_of({shape[0]}, nn::Initialization::Kind::ones));
    }
    attach<nn::TrainedUpdate>().update = update;
    attach<nn::LayerSplits>().declared = [this] { return splits(); };
  }
  std::string_view kind() const override { return "LowRankLayer"; }
  std::vector<std::string> input_names() const override { return {"input"}; }

  Tensors forward(const Tensors& inputs) override {
    const Tensor& x = input(inputs, 0);
    const Tensor& weight = parameter("weight")->use();
    const Tensor& a = parameter("lora_A")->use();
    const Tensor& b = parameter("lora_B")->use();
    const double scale = update_.scale();
    const Tensor y = ops::add(ops::linear(x, weight), ops::linear(ops::linear(x, a), b), scale);
    if (!update_.dora) {
      return {y};
    }
    const Tensor sum = ops::add(weight, ops::matmul(b, a), scale);
    const Tensor length = ops::detach(ops::sqrt(ops::sum(ops::square(sum), {1})));
    return {ops::mul(y, ops::div(parameter("magnitude")->use(), length))};
  }

  std::vector<nn::LayerSplit> splits() const {
    return {{.name = "columns",
             .parameters = {{parameter("weight"), Shard(0)}, {parameter("lora_B"), Shard(0)}},
             .inputs = {Replicate()},
             .output = Shard(-1)},
            {.name = "rows",
             .parameters = {{parameter("weight"), Shard(1)}, {parameter("lora_A"), Shard(1)}},
             .inputs = {Shard(-1)},
             .output = Partial()}};
  }

 private:
  nn::LowRankUpdate update_;
};

/// Options: rank, alpha, rslora, dora, as in PEFT.
class LowRank final : public ParallelStyle {
 public:
  explicit LowRank(Options& options) {
    update_.rank = options.integer("rank", 4);
    update_.alpha = options.number("alpha", 8);
    update_.rank_stabilized = options.flag("rslora", false);
    update_.dora = options.flag("dora", false);
  }
  StyleFacts facts() const override { return {.replaces_modules = true, .most_axes = 0}; }
  std::shared_ptr<nn::Module> replace(const std::shared_ptr<nn::Module>& module) override {
    return std::make_shared<Layer>(*module, update_);
  }
  void apply(const StyleTarget&) override {}

 private:
  nn::LowRankUpdate update_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<ParallelStyle>("LowRank",
                               [](Options& options) { return std::make_unique<LowRank>(options); });
}
