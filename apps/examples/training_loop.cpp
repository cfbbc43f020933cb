// training_loop RANKS STEPS: a training loop of a program's own. Rows have labels that do not
// count, gradients are accumulated, the schedule counts tokens, and every tenth step is followed by
// an evaluation. docs/training-loop.md explains it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

import tessera;

using namespace tessera;

namespace {

constexpr std::int64_t rows = 48;
constexpr std::int64_t length = 16;
constexpr std::int64_t ignored = -1;

/// Tokens [rows, length] -> logits of the next token, which depend on the last two.
struct Pairs : nn::Module {
  std::shared_ptr<nn::Embedding> embed = add_child<nn::Embedding>("embed", 8, 32, 1.0);
  std::shared_ptr<nn::Linear> inner = add_child<nn::Linear>("inner", 64, 64, true, 0.1);
  std::shared_ptr<nn::Linear> head = add_child<nn::Linear>("head", 64, 8, true, 0.1);
  Pairs() { set_names(); }
  std::string_view kind() const override { return "Pairs"; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor last = (*embed)(ops::narrow(inputs[0], 1, 1, length));
    const Tensor before = (*embed)(ops::narrow(inputs[0], 1, 0, length));
    return {(*head)(ops::gelu((*inner)(ops::cat(std::vector{before, last}, 2))))};
  }
};

struct Batch {
  Tensor tokens;   // [rows, length + 1] (i64)
  Tensor targets;  // [rows, length] (i64): the sum of the last two modulo 8; `ignored` after a 0
};

/// This rank's rows of a batch. Those of a validation come from another stream.
Batch batch_of(const BatchPart& part, std::uint64_t stream, const parallel::ParallelPlan& plan) {
  RandomStream numbers{.seed = 1, .stream = stream};
  numbers.offset = static_cast<std::uint64_t>((part.step * rows + part.first) * (length + 1));
  const Tensor tokens = ops::randint_(zeros({part.rows, length + 1}, DType::i64), 0, 8, numbers);
  const Tensor last = ops::narrow(tokens, 1, 1, length);
  const Tensor sum = ops::add(last, ops::narrow(tokens, 1, 0, length));
  const Tensor wrapped = ops::remainder(sum, full({}, 8, DType::i64));
  const Tensor targets = ops::masked_fill(wrapped, ops::eq(last, 0), ignored);
  const auto whole = [&](const Tensor& x) { return from_local(x, plan.batch_layout()); };
  return {whole(tokens), whole(targets)};
}

int train(int ranks, std::int64_t steps) {
  set_seed(1);
  const DeviceMesh mesh = DeviceMesh::make({"shard"}, {ranks});

  Pairs model;  // without memory until materialize()
  parallel::FullySharded sharded = parallel::fully_shard(model, mesh, {.groups = {"*", "."}});
  sharded.materialize();
  parallel::ParallelPlan& plan = sharded.plan();
  nn::initialize(model);

  const optim::Schedule schedule{.kind = optim::ScheduleKind::cosine,
                                 .lr = 0.02,
                                 .unit = optim::ScheduleUnit::tokens,
                                 .warmup = 5'000,
                                 .end = 80'000};
  Training training(model, plan, optim::adamw(nn::all_parameters(model)), schedule, 1.0);
  training.checkpoints().resume("checkpoints");

  const auto loss_of = [&](const Batch& batch) {
    return ops::cross_entropy(model(batch.tokens), batch.targets,
                              {.reduction = ops::Reduction::sum, .ignore_index = ignored});
  };
  /// How many labels of a step count, on all ranks.
  const auto weight_of = [&](std::int64_t step, std::uint64_t stream) {
    const std::int64_t part = rows / plan.batch_parts();
    const BatchPart mine{.step = step, .first = part * plan.batch_part(), .rows = part};
    const Tensor targets = batch_of(mine, stream, plan).targets.local();
    return training.total(ops::counted_rows(targets, ignored).item());
  };

  while (training.done() < steps) {
    const StepResult result =
        training.step({.rows = rows,
                       .micro_rows = rows / plan.batch_parts() / 2,
                       .weight = weight_of(training.done(), 0),
                       .tokens = rows * length},
                      [&](const BatchPart& part) { return loss_of(batch_of(part, 0, plan)); });
    if (training.done() % 10 == 0) {
      const double validation = training.evaluate(
          1, {.rows = rows, .weight = weight_of(0, 1)},
          [&](const BatchPart& part) { return loss_of(batch_of(part, 1, plan)); });
      if (current_rank() == 0) {
        std::printf("step %3d  loss %.4f  validation %.4f  lr %.4f\n",
                    static_cast<int>(training.done()), result.loss, validation, result.lr);
      }
    }
  }
  training.checkpoints().save(checkpoint_folder("checkpoints", training.done()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::int64_t steps = argc > 2 ? std::atoi(argv[2]) : 100;
  return collective::launch({.ranks = ranks},
                            [&](collective::World&) { return train(ranks, steps); });
}
