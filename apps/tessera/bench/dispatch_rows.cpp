module;
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;

namespace tessera::app {
namespace {

/// Tensors of one kind, plain or distributed, on which the programs below run.
using Place = std::function<Tensor(const Tensor& whole, bool batch)>;

/// Two layers, forward and backward: each call of forward, backward and accumulation is an
/// operator.
std::function<void()> mlp_step(const Place& place) {
  struct Operands {
    Tensor x, up, down;
  };
  auto operands = std::make_shared<Operands>(Operands{place(full({8, 8}, 0.5), true),
                                                      place(full({16, 8}, 0.25), false),
                                                      place(full({8, 16}, 0.25), false)});
  operands->up.set_requires_grad();
  operands->down.set_requires_grad();
  return [operands] {
    const Tensor hidden = ops::relu(ops::linear(operands->x, operands->up));
    backward(ops::sum(ops::linear(hidden, operands->down)));
    operands->up.grad() = Tensor();
    operands->down.grad() = Tensor();
  };
}

/// AdamW over 300 parameters of 8 x 8.
std::function<void()> adamw_step(const Place& place) {
  std::vector<nn::ParameterPointer> parameters;
  for (int i = 0; i < 300; ++i) {
    auto parameter = std::make_shared<nn::Parameter>(Dims{8, 8}, DType::f32, nn::Initialization{});
    parameter->name = fmt::format("p{}", i);
    parameter->value = place(full({8, 8}, 0.5), false);
    parameter->value.set_requires_grad();
    parameter->value.grad() = place(full({8, 8}, 0.1), false);
    parameters.push_back(std::move(parameter));
  }
  const std::shared_ptr<optim::Optimizer> optimizer = optim::adamw(std::move(parameters), {});
  return [optimizer] { optimizer->step(1e-3); };
}

}  // namespace

std::vector<DispatchRow> dispatch_rows() {
  std::vector<DispatchRow> rows;
  for (const Dims& shape : {Dims{4}, Dims{2, 2}}) {
    const std::vector<std::string> all = {"data", "tensor"};
    const DeviceMesh mesh = DeviceMesh::make({all.begin(), all.begin() + shape.size()}, shape);
    const Layout whole = Layout::replicated(mesh);
    const Layout sharded = whole.with_placement(0, Shard(0));
    const Place plain = [](const Tensor& x, bool) { return x; };
    const Place spread = [&](const Tensor& x, bool batch) {
      return from_local(x, batch ? sharded : whole);
    };
    const auto add_row = [&](const char* name, const auto& make, int calls = 2000) {
      rows.push_back({name, to_string(mesh), calls, make(plain), make(spread)});
    };
    const auto one_operator = [&](const char* name, auto call) {
      add_row(name, [&](const Place& place) -> std::function<void()> {
        return [call, x = place(full({8, 8}, 0.5), true), w = place(full({8, 8}, 0.25), false),
                b = place(full({8}, 1.0), false)] { call(x, w, b); };
      });
    };
    using T = const Tensor&;
    one_operator("add", [](T x, T, T) { ops::add(x, x); });
    one_operator("addmm", [](T x, T w, T b) { ops::addmm(b, x, w); });
    one_operator("detach", [](T x, T, T) { ops::detach(x); });
    one_operator("layer_norm", [](T x, T, T b) { ops::layer_norm(x, b, b); });
    add_row("mlp forward and backward", &mlp_step, 500);
    add_row("adamw over 300 parameters", &adamw_step, 20);
  }
  return rows;
}

}  // namespace tessera::app
