// A two-layer perceptron in tensor parallelism, written by hand: the first weight is cut by its
// outputs, the second by its inputs, and the two meet without communication. It is trained for some
// steps on 2 ranks, and beside it the same on one.
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;

using namespace tessera;

namespace {

constexpr double learning_rate = 0.5;

struct Mlp {
  Tensor up;    // [hidden, width]
  Tensor down;  // [width, hidden]
};

/// The forward. Between the two products, each rank computes for itself.
Tensor forward(const Mlp& mlp, const Tensor& x) {
  return ops::linear(ops::gelu(ops::linear(x, mlp.up)), mlp.down);
}

/// Plain gradient descent; each rank changes its own part.
void update(Tensor& weight) {
  const NoGrad no_grad;
  const Tensor gradient =
      weight.is_distributed() ? redistribute(weight.grad(), weight.layout()) : weight.grad();
  ops::add_(weight, gradient, -learning_rate);
  weight.grad() = Tensor();
}

int run() {
  const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
  const MeshScope scope(mesh);
  const Layout whole = Layout::make({Replicate()});
  RandomStream& stream = random_stream("init");
  Mlp mlp = {distributed_normal({32, 8}, 0, 0.3, Layout::make({Shard(0)}), stream),
             distributed_normal({8, 32}, 0, 0.3, Layout::make({Shard(1)}), stream)};
  Mlp plain = {full_tensor(mlp.up), full_tensor(mlp.down)};
  const Tensor data = distributed_normal({16, 8}, 0, 1, whole, stream);
  const Tensor target = distributed_normal({16, 8}, 0, 1, whole, stream);
  const Tensor plain_target = full_tensor(target);
  for (Tensor* weight : {&mlp.up, &mlp.down, &plain.up, &plain.down}) {
    weight->set_requires_grad();
  }

  double difference = 0;
  for (int step = 0; step < 20; ++step) {
    // The input would need no gradient here; in a model it does, and this is its one all-reduce.
    Tensor input = detached(data);
    input.set_requires_grad();
    const CommunicationReport report;
    const Tensor x = redistribute(input, whole, whole);
    const Tensor y = redistribute(forward(mlp, x), whole);  // terms, one from each rank
    const Tensor loss = ops::mean(ops::square(ops::sub(y, target)));
    backward(loss);
    update(mlp.up);
    update(mlp.down);
    if (step == 0 && current_rank() == 0) {
      std::printf("a step communicates:\n%s", report.to_string().c_str());
    }

    const Tensor plain_loss =
        ops::mean(ops::square(ops::sub(forward(plain, full_tensor(data)), plain_target)));
    backward(plain_loss);
    update(plain.up);
    update(plain.down);
    difference = std::fmax(
        difference, std::fabs(full_tensor(detached(loss)).item() - detached(plain_loss).item()));
    if (step % 5 == 0 && current_rank() == 0) {
      std::printf("step %2d  loss %.6f\n", step, plain_loss.item());
    }
  }
  if (current_rank() == 0) {
    std::printf("largest difference from one rank: %.1e\n", difference);
  }
  return difference < 1e-5 ? 0 : 1;
}

}  // namespace

int main() {
  return collective::launch({.ranks = 2}, [](collective::World&) { return run(); });
}
