// classifier RANKS STEPS: trains a model of its own, fully sharded, up to step STEPS, with
// checkpoints that it continues from, on any number of ranks. docs/library.md explains it.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>

import tessera;

using namespace tessera;

constexpr std::int64_t batch = 64;

/// Points [rows, 2] -> logits of two classes [rows, 2].
struct Classifier : nn::Module {
  std::shared_ptr<nn::Linear> first = add_child<nn::Linear>("first", 2, 64, true, 1.0);
  std::shared_ptr<nn::Linear> second = add_child<nn::Linear>("second", 64, 2, true, 0.1);
  std::string_view kind() const override { return "Classifier"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*second)(ops::gelu((*first)(inputs[0])))};
  }
};

/// Points of the square from -1 to 1, and their classes: 1 below the parabola y = x^2, else 0.
Tensors points_of(const BatchPart& part) {
  RandomStream numbers{.seed = 1, .offset = std::uint64_t(2 * (part.step * batch + part.first))};
  const Tensor points = ops::uniform_(empty({part.rows, 2}), -1, 1, numbers);
  const Tensor below = ops::lt(ops::select(points, 1, 1), ops::square(ops::select(points, 1, 0)));
  return {points, ops::cast(below, DType::i64)};
}

Tensor loss_sum(nn::Module& model, const Tensors& rows) {
  return ops::cross_entropy(model(rows[0]), rows[1], {.reduction = ops::Reduction::sum});
}

int main(int argc, char** argv) {
  runs::RunSpec spec;
  spec.train.steps = argc > 2 ? std::atoi(argv[2]) : 60;
  spec.train.batch = batch;
  spec.optimizer.lr = 0.01;
  spec.optimizer.warmup = 5;
  spec.mesh.axes = {"shard"};
  spec.mesh.shape = {argc > 1 ? std::atoi(argv[1]) : 2};
  runs::fully_shard(spec);
  return runs::train(spec, {.model = [] { return std::make_shared<Classifier>(); },
                            .rows = points_of,
                            .loss_sum = loss_sum});
}
