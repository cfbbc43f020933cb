// Optimizers as rules: groups of parameters, rules of plugins, options, states of another type.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;

#include "parameters.hpp"

using namespace tessera;
using optim_test::parameter;
using optim_test::set_gradients;

namespace {

/// p -= lr * (gradient + decay * p), and a count of its calls in f32.
class Plain final : public optim::UpdateRule {
 public:
  explicit Plain(PluginOptions& options) : factor_(options.number("factor", 1)) {}
  std::vector<optim::StateTensor> states() const override {
    return {{.name = "calls", .dtype = DType::f32}};
  }
  void update(const optim::UpdateGroup& group) override {
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const Tensor change = ops::add(ops::mul_scalar(group.gradients[i], group.grad_scale),
                                     ops::mul_scalar(group.parameters[i], group.weight_decay));
      ops::add_(group.parameters[i], ops::mul_scalar(change, -group.lr * factor_));
      ops::add_scalar_(group.states[0][i], 1);
    }
    ++groups;
  }
  static inline int groups = 0;

 private:
  double factor_;
};

void register_plain() {
  static const bool registered = [] {
    plugin::host().add<optim::UpdateRule>(
        "Plain", [](PluginOptions& options) { return std::make_unique<Plain>(options); });
    return true;
  }();
  (void)registered;
}

std::string error_of_rule(const std::string& name, const std::string& options) {
  try {
    optim::load_rule(name, options, "run.toml:3: optimizer.options");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE(
    "groups have their own learning rate and decay; of each, the last one that is set counts") {
  register_plain();
  const std::vector<nn::ParameterPointer> parameters = {
      parameter("embed.weight", {2, 3}), parameter("layers.0.up.weight", {3, 2}),
      parameter("layers.0.up.bias", {3}), parameter("layers.1.up.weight", {3, 2})};
  parameters[0]->other_names = {"head.weight"};  // tied
  optim::Optimizer optimizer(
      parameters, optim::load_rule("Plain"),
      {.weight_decay = 0.5,
       .groups = {{.on = {"layers.**"}, .lr_scale = 0.1},
                  {.on = {"layers.1.*.weight", "embed.*"}, .lr_scale = 2, .weight_decay = 0},
                  {.on = {"head.weight"}, .weight_decay = 0.25}}});
  std::vector<std::vector<double>> before;
  for (const nn::ParameterPointer& p : parameters) {
    before.push_back(to_doubles(p->value));
  }
  set_gradients(parameters, 1);
  Plain::groups = 0;
  optimizer.step(0.2, 0.5);
  CHECK(Plain::groups == 4);
  const double lrs[] = {0.4, 0.02, 0.02, 0.4};
  const double decays[] = {0.25, 0.5, 0, 0};
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const std::vector<double> after = to_doubles(parameters[k]->value);
    const std::vector<double> gradient = to_doubles(parameters[k]->value.grad());
    for (std::size_t i = 0; i < after.size(); ++i) {
      CHECK(after[i] ==
            Approx(before[k][i] - lrs[k] * (0.5 * gradient[i] + decays[k] * before[k][i]))
                .epsilon(1e-12));
    }
  }
  CHECK_THROWS_WITH(
      optim::Optimizer(parameters, optim::load_rule("sgd"), {.groups = {{.on = {"layer.*"}}}}),
      Catch::Contains("the pattern 'layer.*' matches no parameter"));
}

TEST_CASE("a rule's states have its names and types, and are saved and loaded") {
  register_plain();
  const std::vector<nn::ParameterPointer> parameters = {parameter("w", {2, 2})};
  optim::Optimizer optimizer(parameters, optim::load_rule("Plain", R"({"factor": 0.5})"));
  set_gradients(parameters, 1);
  optimizer.step(0.1);
  optimizer.step(0.1);
  const StateDict saved = optimizer.state();
  REQUIRE(saved.tensors.size() == 1);
  CHECK(saved.tensors.at("calls.w").dtype() == DType::f32);
  CHECK(to_doubles(saved.tensors.at("calls.w")) == std::vector<double>(4, 2));
  CHECK(std::get<std::int64_t>(saved.scalars.at("step.w")) == 2);

  optim::Optimizer resumed(parameters, optim::load_rule("Plain"));
  resumed.prepare_state();
  resumed.load_scalars(saved);
  CHECK(std::get<std::int64_t>(resumed.state().scalars.at("step.w")) == 2);
  CHECK(to_doubles(resumed.state().tensors.at("calls.w")) == std::vector<double>(4, 0));
}

TEST_CASE("the optimizer of the template is Lion, in every layout") {
  plugin::host().load(TESSERA_LION);
  const auto lion = [](double& p, double& m, double g, double lr, double decay) {
    const double c = 0.8 * m + 0.2 * g;
    p = p * (1 - lr * decay) - lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
    m = 0.95 * m + 0.05 * g;
  };
  collective::LaunchOptions launch;
  launch.print_error = false;
  collective::run_threads(
      2,
      [&](collective::World&) {
        const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
        for (const Placement placement : {Placement(Replicate()), Placement(Shard(0))}) {
          const auto whole = parameter("w", {3, 2});
          const auto p = parameter("w", {3, 2});
          const Layout layout = Layout::make(mesh, {placement});
          p->value = distribute(detached(p->value), layout);
          p->value.set_requires_grad();
          optim::Optimizer optimizer({p}, optim::load_rule("Lion", R"({"betas": [0.8, 0.95]})"),
                                     {.weight_decay = 0.3});
          std::vector<double> expected = to_doubles(whole->value);
          std::vector<double> moments(expected.size(), 0);
          for (int step = 1; step <= 4; ++step) {
            set_gradients({whole}, step);
            p->value.grad() = distribute(whole->value.grad(), layout);
            optimizer.step(0.01, 0.5);
            const std::vector<double> gradient = to_doubles(whole->value.grad());
            for (std::size_t i = 0; i < expected.size(); ++i) {
              lion(expected[i], moments[i], 0.5 * gradient[i], 0.01, 0.3);
            }
          }
          const std::vector<double> got = to_doubles(full_tensor(p->value));
          for (std::size_t i = 0; i < expected.size(); ++i) {
            if (std::abs(got[i] - expected[i]) > 1e-12) {
              fail("element " + std::to_string(i) + ": " + std::to_string(got[i]) + " instead of " +
                   std::to_string(expected[i]));
            }
          }
        }
      },
      launch);
}

TEST_CASE("optimizers that do not exist and options that they do not have are errors") {
  register_plain();
  for (const char* file : {TESSERA_LION, TESSERA_ADAFACTOR, TESSERA_MUON}) {
    plugin::host().load(file);
  }
  CHECK(
      error_of_rule("adamv", "{}") ==
      "optimizer: there is no optimizer 'adamv' (there are Lion, Plain, adadelta, adafactor, "
      "adagrad, adam, adamax, adamw, asgd, lion, muon, nadam, radam, rmsprop, rprop and sgd); did "
      "you mean 'adam'?; "
      "'tessera plugin list' shows the plugins");
  CHECK(error_of_rule("lbfgs", "{}")
            .starts_with("optimizer: lbfgs evaluates the loss several times in a step"));
  const std::pair<std::string, std::string> wrong[] = {
      {R"({"betas": [0.9]})",
       "option 'betas' must be two numbers of at least 0 and less than 1 (got [0.9])"},
      {R"({"betas": [0.9, 1]})", "(got [0.9,1])"},
      {R"({"betas": 0.9})", "(got 0.9)"},
      {R"({"eps": 0})", "option 'eps' must be a number more than 0 (got 0)"},
      {R"({"eps": "small"})", "(got \"small\")"},
      {R"({"momentum": 0.9})",
       "there is no option 'momentum' (options: amsgrad, betas, eps, maximize and state_bits)"},
  };
  for (const auto& [options, expected] : wrong) {
    const std::string error = error_of_rule("adamw", options);
    CHECK(error.starts_with("run.toml:3: optimizer.options: "));
    INFO(error);
    CHECK(error.find(expected) != std::string::npos);
  }
  CHECK(error_of_rule("sgd", R"({"momentum": -0.1})").find("at least 0") != std::string::npos);
  CHECK(error_of_rule("sgd", R"({"nesterov": true})") ==
        "run.toml:3: optimizer.options: nesterov needs a momentum above 0 and no dampening");
  CHECK(error_of_rule("sgd", R"({"nesterov": true, "momentum": 0.5})") == "no error");
}
