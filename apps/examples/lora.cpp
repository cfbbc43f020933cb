// lora: a linear layer of one's own (low-rank adaptation) takes the place of a model's linear
// layers, and ColwiseParallel and RowwiseParallel split it like any other: it declares how. A style
// of the program's own counts the calls around them. The result on 2 ranks is compared with one.
// docs/layers.md explains it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera;

using namespace tessera;

namespace {

constexpr std::int64_t rank_of_update = 4;

nn::ParameterPointer normal(const Dims& shape, double deviation) {
  return std::make_shared<nn::Parameter>(
      shape, DType::f32, nn::Initialization{nn::Initialization::Kind::normal, deviation});
}

/// y = base(x) + (x A^T) B^T: base is a linear layer [in] -> [out], A [r, in], B [out, r].
class LoraLinear : public nn::Module {
 public:
  explicit LoraLinear(const std::shared_ptr<nn::Module>& base) {
    base_ = attach("base", base);
    const Dims shape = base->parameter("weight")->value.shape();  // [out, in]
    add_parameter("lora_a", normal({rank_of_update, shape[1]}, 0.3));
    add_parameter("lora_b", normal({shape[0], rank_of_update}, 0.3));
    attach<nn::LayerSplits>().declared = [this] { return splits(); };
  }
  std::string_view kind() const override { return "LoraLinear"; }
  std::vector<std::string> input_names() const override { return {"input"}; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor& x = input(inputs, 0);
    const Tensor low = ops::linear(x, parameter("lora_a")->use());
    return {ops::add((*base_)(x), ops::linear(low, parameter("lora_b")->use()))};
  }

 private:
  /// As the layer inside, and: by columns each rank has rows of B, by rows it has columns of A.
  std::vector<nn::LayerSplit> splits() const {
    nn::LayerSplit columns = nn::split_of(*base_, "columns");
    columns.parameters.push_back({parameter("lora_b"), Shard(0)});
    nn::LayerSplit rows = nn::split_of(*base_, "rows");
    rows.parameters.push_back({parameter("lora_a"), Shard(1)});
    return {std::move(columns), std::move(rows)};
  }

  nn::Child base_;
};

/// down(gelu(up(x))). Children that may be replaced are kept as nn::Child.
class Mlp : public nn::Module {
 public:
  Mlp() {
    up_ = add_child<nn::Linear>("up", 8, 32, true, 0.3);
    down_ = add_child<nn::Linear>("down", 32, 8, false, 0.3);
    set_names();
  }
  std::string_view kind() const override { return "Mlp"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*down_)(ops::gelu((*up_)(inputs[0])))};
  }

 private:
  nn::Child up_, down_;
};

/// The layers become LoraLinear, of which only A and B are trained.
void adapt(nn::Module& model) {
  nn::replace_modules(model, "{up,down}", [](const std::shared_ptr<nn::Module>& before) {
    return std::make_shared<LoraLinear>(before);
  });
  nn::freeze(model, std::vector<std::string>{"**.base.*"});
}

/// Counts the calls of a module. Its hook sees the inputs as the caller gives them, because the
/// plan lets it come only after the styles that convert them.
class CountCalls : public parallel::ParallelStyle {
 public:
  explicit CountCalls(int& calls) : calls_(calls) {}
  parallel::StyleFacts facts() const override { return {.wraps_forward = true}; }
  void apply(const parallel::StyleTarget& target) override {
    target.module.add_outer_pre_hook([this](nn::Module&, Tensors&) { ++calls_; });
  }

 private:
  int& calls_;
};

/// The gradients of A and B of all layers for one batch, whole.
std::vector<double> gradients(nn::Module& model, const Tensor& x) {
  backward(ops::sum(ops::square(model(x))));
  const auto parameters = nn::all_parameters(model);
  parallel::GradientFinisher().finish(parameters);
  std::vector<double> all;
  for (const nn::ParameterPointer& p : parameters) {
    if (const Tensor gradient = p->value.grad()) {
      const std::vector<double> values =
          to_doubles(gradient.is_distributed() ? full_tensor(gradient) : gradient);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

int run() {
  const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
  const Tensor x = full({4, 8}, 0.5);

  set_seed(1);
  Mlp one;
  adapt(one);
  nn::materialize(one);
  nn::initialize(one);
  const std::vector<double> expected = gradients(one, x);

  set_seed(1);
  Mlp model;
  adapt(model);
  int calls = 0;
  const auto count_calls = [&](parallel::Options&) { return std::make_unique<CountCalls>(calls); };
  parallel::ParallelPlan plan = parallel::apply(
      model, mesh,
      {{.style = "ColwiseParallel", .axis = "tensor", .on = {"up"}},
       {.style = "RowwiseParallel", .axis = "tensor", .on = {"down"}},
       {.style = "CountCalls", .axis = "tensor", .on = {"up", "down"}, .make = count_calls}});
  plan.materialize();
  nn::initialize(model);
  const std::vector<double> split = gradients(model, distribute(x, plan.batch_layout()));

  double difference = expected.size() == split.size() ? 0 : 1;
  for (std::size_t i = 0; i < split.size() && difference < 1; ++i) {
    difference =
        std::fmax(difference, std::fabs(expected[i] - split[i]) / (1 + std::fabs(split[i])));
  }
  if (current_rank() == 0) {
    std::printf("up.lora_b is %s\n",
                to_string(*model.children()[0].second->parameter("lora_b")->value.spec()).c_str());
    std::printf("%d calls; largest difference from one rank: %.1e\n", calls, difference);
  }
  return calls == 2 && difference < 1e-5 ? 0 : 1;
}

}  // namespace

int main() {
  return collective::launch({.ranks = 2}, [](collective::World&) { return run(); });
}
