// Modes above distribution see the program as written, modes below it what is executed; and the
// actions that are not operators.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::numbered;
using dtensor_test::on_ranks;

namespace {

using Names = std::vector<std::string>;

/// Writes down operators with their operands, and actions when they begin and end.
class Recorder final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    std::string text = call.op.name;
    for (const Tensor& x : call.in) {
      text += " " + (!x                   ? "none"
                     : x.is_distributed() ? to_string(*x.spec())
                                          : to_string(x.shape()));
    }
    seen.push_back(std::move(text));
    return next(call);
  }
  void perform(Action& action, NextAction& next) override {
    const std::string text = std::string(name_of(action.kind)) + " " + std::string(action.name);
    seen.push_back(text + " {");
    next(action);
    seen.push_back("}");
  }
  Names seen;
};

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) {
    text += name + "\n";
  }
  return text;
}

void expect(const Names& got, const Names& expected) {
  check(got == expected, "expected:\n" + joined(expected) + "got:\n" + joined(got));
}

class Doubled final : public Mode {
 public:
  void perform(Action& action, NextAction& next) override {
    if (action.kind == ActionKind::module) {
      action.in[0] = ops::mul_scalar(action.in[0], 2);
    }
    next(action);
    if (action.kind == ActionKind::gradient_hook) {
      action.out[0] = ops::mul_scalar(action.in[0], 10);
    }
  }
};

class Negated final : public nn::Module {
 public:
  std::string_view kind() const override { return "Negated"; }
  Tensors forward(const Tensors& inputs) override { return {ops::neg(inputs[0])}; }
};

}  // namespace

TEST_CASE("above distribution is the program, below it local operators and collectives") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const Tensor x = distribute(numbered({4, 2}), Layout::make(mesh, {Shard(0)}));
    Recorder above;
    Recorder below;
    const ModeScope above_scope(ModeLevel::above_distribution, above);
    const ModeScope below_scope(ModeLevel::below_distribution, below);
    const Tensor y = ops::exp(x);
    const Tensor whole = redistribute(y, Layout::replicated(mesh));
    expect(above.seen, {"exp f64[4, 2] [Shard(0)]", "redistribute f64[4, 2] [Shard(0)]"});
    expect(below.seen, {"exp [2, 2]", "all_gather [2, 2]"});
  });
}

TEST_CASE("modules, phases, hooks and accumulation enclose the operators within them") {
  Negated module;
  module.set_names("layer");
  Recorder recorder;
  Tensor x = numbered({2});
  x.set_requires_grad();
  const Tensor seed = numbered({2}, 1);
  const ModeScope scope(ModeLevel::above_distribution, recorder);
  const Tensor y = module(x);
  add_gradient_hook(x, [](const Tensor& gradient) { return ops::abs(gradient); });
  add_post_accumulate_hook(x, [](Tensor& leaf) { ops::exp(leaf.grad()); });
  backward({&y, 1}, {&seed, 1});
  expect(recorder.seen, {"module layer {", "neg [2]", "}", "phase backward {", "neg [2]",
                         "gradient_hook accumulate {", "abs [2]", "}", "accumulate accumulate {",
                         "exp [2]", "}", "}"});
}

TEST_CASE("actions reach modes at both levels, those above distribution first") {
  Negated module;
  module.set_names("layer");
  Recorder above;
  Recorder below;
  const Tensor x = numbered({2});
  const ModeScope below_scope(ModeLevel::below_distribution, below);
  const ModeScope above_scope(ModeLevel::above_distribution, above);
  module(x);
  expect(above.seen, {"module layer {", "neg [2]", "}"});
  expect(below.seen, above.seen);
}

TEST_CASE("a mode changes the inputs of modules and the results of hooks") {
  Negated module;
  Doubled doubled;
  const ModeScope scope(ModeLevel::above_distribution, doubled);
  Tensor x = numbered({2}, 1);
  x.set_requires_grad();
  const Tensor y = module(x);
  CHECK(to_doubles(y) == std::vector<double>{-2, -4});
  add_gradient_hook(x, [](const Tensor&) { return Tensor(); });
  const Tensor seed = numbered({2}, 1);
  backward({&y, 1}, {&seed, 1});
  CHECK(to_doubles(x.grad()) == std::vector<double>{-20, -40});
}

TEST_CASE("an error in a module leaves the modes as they were") {
  Negated module;
  Recorder recorder;
  const ModeScope scope(ModeLevel::above_distribution, recorder);
  CHECK(dtensor_test::error_of([&] { module(Tensors{Tensor()}); }) != "no error");
  ops::abs(numbered({2}));
  CHECK(recorder.seen.back() == "abs [2]");
}

TEST_CASE("the optimizer's step and the gradient norm are phases") {
  const auto parameter = std::make_shared<nn::Parameter>(Dims{2}, DType::f32, nn::Initialization{});
  parameter->value = zeros({2});
  parameter->value.set_requires_grad();
  parameter->value.grad() = full({2}, 3);
  const auto sgd = optim::sgd({parameter}, {});
  Recorder recorder;
  const ModeScope scope(ModeLevel::above_distribution, recorder);
  CHECK(optim::global_gradient_norm(std::vector{parameter}) == Approx(std::sqrt(18.0)));
  sgd->step(0.1);
  CHECK(recorder.seen.front() == "phase gradient norm {");
  CHECK(std::find(recorder.seen.begin(), recorder.seen.end(), "phase optimizer {") !=
        recorder.seen.end());
  CHECK(recorder.seen.back() == "}");
}
