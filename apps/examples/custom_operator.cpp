// custom_operator PLUGIN: loads softcap and lion_step_ from a plugin and uses them on distributed
// tensors as if Tessera had them: forward, gradient, an optimizer's step. 2 ranks.
#include <cmath>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <utility>
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

using namespace tessera;

namespace {

struct SoftcapArgs {
  Dynamic<double> cap;
};
struct LionArgs {
  Dynamic<double> lr;
  Dynamic<double> beta1;
  Dynamic<double> beta2;
  Dynamic<double> decay;
};

Tensor softcap(const Tensor& x, double cap) {
  static const Op& op = load_operator("softcap");
  return call_one(op, {x}, SoftcapArgs{cap});
}

/// The Lion optimizer over distributed parameters: its state lies where they lie.
class Lion {
 public:
  explicit Lion(std::vector<Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const Tensor& p : parameters_) {
      momenta_.push_back(ops::zeros_like(detached(p)));
    }
  }

  void step(double rate) {
    static const Op& op = load_operator("lion_step_");
    const NoGrad no_grad;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Tensor& p = parameters_[i];
      const Tensor gradient = redistribute(p.grad(), p.layout());
      call_one(op, {p, momenta_[i], gradient},
               LionArgs{.lr = rate, .beta1 = 0.9, .beta2 = 0.99, .decay = 0});
      p.grad() = Tensor();
    }
  }

 private:
  std::vector<Tensor> parameters_;
  std::vector<Tensor> momenta_;
};

int run() {
  const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
  const double cap = 2;
  const Tensor start = from_values<float>({-6, -1, 0, 0.5, 3}, {5});  // 3 elements and 2
  Tensor x = distribute(start, Layout::make(mesh, {Shard(0)}));
  x.set_requires_grad();

  const CommunicationReport report;
  const Tensor y = softcap(x, cap);
  backward(ops::sum(y));
  // d/dx cap * tanh(x / cap) = 1 - tanh(x / cap)^2
  double error = 0;
  const std::vector<double> mine = to_doubles(x.local());
  const std::vector<double> gradient = to_doubles(x.grad().local());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const double t = std::tanh(mine[i] / cap);
    error = std::fmax(error, std::fabs(gradient[i] - (1 - t * t)));
  }
  const bool silent = report.entries().empty();

  // Minimise the sum of softcap(x)^2: x goes to 0 from wherever it was.
  Lion optimizer({x});
  x.grad() = Tensor();
  for (int step = 0; step < 100; ++step) {
    backward(ops::sum(ops::square(softcap(x, cap))));
    optimizer.step(0.1);
  }
  const double left = ops::amax(ops::abs(full_tensor(detached(x)))).item();
  if (current_rank() == 0) {
    std::printf("softcap of %s is %s\n", to_string(*x.spec()).c_str(),
                to_string(*y.spec()).c_str());
    std::printf("largest error of the gradient: %.1e, %s\n", error,
                silent ? "nothing was communicated" : "something was communicated");
    std::printf("after 100 steps of Lion the largest element is %.2f\n", left);
  }
  return error < 1e-6 && silent && left < 0.2 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: custom_operator PLUGIN\n");
    return 2;
  }
  plugin::configure_host({{argv[1]}, false, false});
  return collective::launch({.ranks = 2}, [](collective::World&) { return run(); });
}
