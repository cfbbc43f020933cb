// compiled_step STEPS: a small model whose step is captured by compile() at its second call, and
// replayed from then on. docs/graph-programs.md explains it.
#include <cstdio>
#include <cstdlib>
#include <memory>

import tessera;

using namespace tessera;

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 100;
  set_seed(1);
  nn::Linear model(4, 1, true, 0.5);
  nn::materialize(model);
  nn::initialize(model);
  const auto optimizer = optim::adamw(nn::all_parameters(model));
  CompiledStep step = compile([&](StepCall& call) -> Tensors {
    const Tensor& x = call.inputs()[0];
    const Tensor error = ops::sub(model(x), ops::sum(x, {1}, true));
    const Tensor loss = ops::mul_scalar(ops::sum(ops::square(error)), 1.0 / 32);
    backward(loss);
    call.update(*optimizer, call.number("lr"));
    return {loss};
  });
  for (int i = 0; i < steps; ++i) {
    const Tensor x = ops::normal_(empty({32, 4}), 0, 1, random_stream("data"));
    const Tensors losses = step({x}, {.numbers = {{"lr", 0.1 / (1 + 0.1 * i)}}});
    if ((i + 1) % 20 == 0) {
      std::printf("step %3d  loss %.4f\n", i + 1, losses[0].item());
    }
  }
  std::printf("calls: %s\n", to_string(step.counts()).c_str());
}
