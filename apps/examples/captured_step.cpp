// captured_step RANKS STEPS: a sharded step that is captured before its first call. Two guards
// select its program: the stage of the training, which the host knows before a step, and whether
// the loss is far too large, which the step computes: such a batch updates nothing.
// docs/graph-programs.md explains it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

import tessera;

using namespace tessera;

namespace {

constexpr std::int64_t rows = 32;

/// 16 numbers -> 4.
struct Net : nn::Module {
  std::shared_ptr<nn::Linear> first = add_child<nn::Linear>("first", 16, 32, true, 0.2);
  std::shared_ptr<nn::Linear> second = add_child<nn::Linear>("second", 32, 4, true, 0.2);
  Net() { set_names(); }
  std::string_view kind() const override { return "Net"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*second)(ops::gelu((*first)(inputs[0])))};
  }
};

/// The model with all that its step needs, on the CPU or, to be captured, on the meta device.
struct TrainedModel {
  TrainedModel(const DeviceMesh& mesh, Device device)
      : sharded(parallel::fully_shard(model, mesh, {.groups = {"*", "."}})) {
    if (device == cpu) {
      sharded.materialize();
      nn::initialize(model);
    }
    optimizer = optim::adamw(nn::all_parameters(model));
  }

  /// Returns the loss, on all ranks.
  Tensors step(StepCall& call) {
    const Tensor x = from_local(call.inputs()[0], sharded.batch_layout());
    const Tensor y = ops::narrow(x, 1, 0, 4);
    const Tensor error = ops::sub(model(x), y);
    // In the second stage, the largest errors count less.
    const Tensor each = call.guard("stage") == 0 ? ops::square(error) : ops::abs(error);
    const Tensor sum = ops::mul_scalar(ops::sum(each), 1.0 / rows);
    Tensor loss;
    {
      const NoGrad no_grad;  // the same number on all ranks
      loss = redistribute(sum, Layout::replicated(sharded.plan().mesh())).local();
    }
    if (guard("spike", ops::gt(loss, 1000)) == 0) {
      backward(sum);
      call.update(*optimizer, call.number("lr"));
    }
    return {loss};
  }

  Net model;  // without memory until materialize()
  parallel::FullySharded sharded;
  std::unique_ptr<optim::Optimizer> optimizer;
};

int train(int ranks, int steps) {
  set_seed(1);
  const DeviceMesh mesh = DeviceMesh::make({"shard"}, {ranks});
  const std::int64_t part = rows / ranks;
  CompiledStep step = compile([&](Device device) -> StepBody {
    const auto trained = std::make_shared<TrainedModel>(mesh, device);
    return [trained](StepCall& call) { return trained->step(call); };
  });

  RandomStream numbers{.seed = 1, .stream = static_cast<std::uint64_t>(current_rank())};
  for (int i = 0; i < steps; ++i) {
    const double size = i % 8 == 5 ? 1000 : 1;  // a damaged batch
    const Tensor x = ops::normal_(zeros({part, 16}), 0, size, numbers);
    const Tensors losses =
        step({x}, {.numbers = {{"lr", 0.01}}, .guards = {{"stage", i < steps / 2 ? 0 : 1}}});
    if (current_rank() == 0 && (i + 1) % 8 == 0) {
      std::printf("step %3d  loss %.4f\n", i + 1, losses[0].item());
    }
  }
  if (current_rank() == 0) {
    std::printf("calls: %s\n", to_string(step.counts()).c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 80;
  return collective::launch({.ranks = ranks},
                            [&](collective::World&) { return train(ranks, steps); });
}
