// classifier RANKS STEPS: trains a model of its own, fully sharded, up to step STEPS. It saves a
// checkpoint at the end and continues from the newest one, on any number of ranks.
// docs/library.md explains it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

import tessera;

using namespace tessera;

namespace {

/// Points [rows, 2] -> logits of two classes [rows, 2].
class Classifier : public nn::Module {
 public:
  Classifier() {
    first_ = add_child<nn::Linear>("first", 2, 64, true, 1.0);
    second_ = add_child<nn::Linear>("second", 64, 2, true, 0.1);
    set_names();
  }
  std::string_view kind() const override { return "Classifier"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*second_)(ops::gelu((*first_)(inputs[0])))};
  }

 private:
  std::shared_ptr<nn::Linear> first_, second_;
};

constexpr std::int64_t batch_rows = 64;

struct Batch {
  Tensor points;  // [batch_rows, 2], in the square from -1 to 1
  Tensor labels;  // [batch_rows] (i64): 1 below the parabola y = x^2, else 0
};

/// The batch of a step: the same points on any number of ranks. Each rank makes only its rows.
Batch make_batch(std::int64_t step, const Layout& layout) {
  RandomStream stream = random_stream("data");
  stream.offset = static_cast<std::uint64_t>(step * batch_rows * 2);
  const Tensor points = distributed_uniform({batch_rows, 2}, -1, 1, layout, stream);
  const Tensor x = ops::select(points, 1, 0);
  const Tensor y = ops::select(points, 1, 1);
  return {points, ops::cast(ops::lt(y, ops::square(x)), DType::i64)};
}

int train(int ranks, std::int64_t steps) {
  set_seed(1);
  const DeviceMesh mesh = DeviceMesh::make({"shard"}, {ranks});

  Classifier model;  // without memory until materialize()
  parallel::FullySharded sharded = parallel::fully_shard(model, mesh, {.groups = {"*", "."}});
  sharded.materialize();
  parallel::ParallelPlan& plan = sharded.plan();
  nn::initialize(model);

  Training training(model, plan, optim::adamw(nn::all_parameters(model), {}, {.weight_decay = 0}),
                    {.lr = 0.01, .warmup = 5}, 1.0);
  training.resume("checkpoints");
  while (training.done() < steps) {
    const StepResult result =
        training.step({.rows = batch_rows, .weight = batch_rows}, [&](const BatchPart& part) {
          const Batch batch = make_batch(part.step, plan.batch_layout());
          return ops::cross_entropy(model(batch.points), batch.labels,
                                    {.reduction = ops::Reduction::sum});
        });
    if (current_rank() == 0 && training.done() % 10 == 0) {
      std::printf("step %3d  loss %.6f\n", static_cast<int>(training.done()), result.loss);
    }
  }
  training.save(checkpoint_folder("checkpoints", training.done()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::atoi(argv[1]) < 1 || std::atoi(argv[2]) < 1) {
    std::fprintf(stderr, "usage: classifier RANKS STEPS\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  const std::int64_t steps = std::atoi(argv[2]);
  return collective::launch({.ranks = ranks},
                            [&](collective::World&) { return train(ranks, steps); });
}
