// classifier RANKS STEPS: trains a model of its own, fully sharded, up to step STEPS. It saves a
// checkpoint at the end and continues from the newest one, on any number of ranks.
// docs/library.md explains it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;

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

/// Everything that a step depends on. The tensors are the live ones: a load writes into them.
StateDict training_state(nn::Module& model, const optim::Optimizer& optimizer, std::int64_t done) {
  StateDict weights;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    weights.tensors.emplace(name, parameter->value);
  }
  StateDict state;
  state.merge("model", weights);
  state.merge("optimizer", optimizer.state());
  state.scalars["step"] = done;
  return state;
}

int train(int ranks, std::int64_t steps) {
  set_seed(1);
  const DeviceMesh mesh = DeviceMesh::make({"shard"}, {ranks});

  Classifier model;  // without memory until materialize()
  parallel::ParallelPlan plan(model, mesh, {{.style = "FSDP", .axis = "shard", .on = {"*", "."}}},
                              plugin::host());
  plan.materialize();
  nn::initialize(model);

  const std::vector<nn::ParameterPointer> parameters = nn::all_parameters(model);
  const auto optimizer = optim::adamw(parameters, {}, {.weight_decay = 0});
  const optim::Schedule schedule = {.lr = 0.01, .warmup = 5};
  parallel::GradientFinisher finisher;

  std::int64_t done = 0;
  if (const std::optional<std::string> newest = latest_checkpoint("checkpoints")) {
    optimizer->prepare_state();
    StateDict state = training_state(model, *optimizer, 0);
    load_state(CheckpointReader(*newest), state);
    optimizer->load_scalars(state.part("optimizer"));
    done = std::get<std::int64_t>(state.scalars.at("step"));
  }

  for (; done < steps; ++done) {
    const Batch batch = make_batch(done, plan.batch_layout());
    const Tensor logits = model(batch.points);
    // The mean over the rows of all ranks: the sum, divided by the global number of rows.
    const Tensor loss = ops::mul_scalar(ops::cross_entropy(logits, batch.labels), 1.0 / batch_rows);
    backward(loss);
    finisher.finish(parameters);  // reduces the gradients that are still Partial
    const double norm = optim::global_gradient_norm(parameters);
    plan.before_optimizer();  // the styles free what the optimizer will overwrite
    optimizer->step(schedule.at(done), optim::clip_factor(norm, 1.0));
    optimizer->zero_grad();
    const double value = full_tensor(detached(loss)).item();
    if (current_rank() == 0 && (done + 1) % 10 == 0) {
      std::printf("step %3d  loss %.6f\n", static_cast<int>(done + 1), value);
    }
  }
  save_checkpoint(checkpoint_folder("checkpoints", done), training_state(model, *optimizer, done));
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
