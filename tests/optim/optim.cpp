// Optimizers, schedules and clipping against their formulas in double.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;

#include "parameters.hpp"

using namespace tessera;
using optim_test::parameter;
using optim_test::set_gradients;

namespace {

/// A matrix and a vector: only the first decays.
std::vector<nn::ParameterPointer> two_parameters() {
  return {parameter("matrix", {2, 3}), parameter("vector", {4})};
}

/// Compares with update(value, gradient, state, step, decay), element by element.
void check_steps(const std::vector<nn::ParameterPointer>& parameters, optim::Optimizer& optimizer,
                 const std::function<double(double, double, double (&)[2], int, double)>& update) {
  struct Element {
    double value;
    double state[2] = {0, 0};
  };
  std::vector<std::vector<Element>> expected;
  for (const nn::ParameterPointer& p : parameters) {
    expected.emplace_back();
    for (const double value : to_doubles(p->value)) {
      expected.back().push_back({.value = value});
    }
  }
  for (int step = 1; step <= 4; ++step) {
    set_gradients(parameters, step);
    optimizer.step(0.1, 0.5);
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const std::vector<double> gradient = to_doubles(parameters[k]->value.grad());
      const std::vector<double> value = to_doubles(parameters[k]->value);
      for (std::size_t i = 0; i < value.size(); ++i) {
        Element& e = expected[k][i];
        const double decay = parameters[k]->value.dims() >= 2 ? 0.2 : 0;
        e.value = update(e.value, 0.5 * gradient[i], e.state, step, decay);
        CHECK(value[i] == Approx(e.value).epsilon(1e-12));
      }
    }
  }
}

}  // namespace

TEST_CASE("AdamW follows its formula, with decay of matrices only") {
  const auto parameters = two_parameters();
  const auto optimizer =
      optim::adamw(parameters, {.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3}, {.weight_decay = 0.2});
  check_steps(parameters, *optimizer,
              [](double p, double g, double(&state)[2], int step, double decay) {
                state[0] = 0.8 * state[0] + 0.2 * g;
                state[1] = 0.9 * state[1] + 0.1 * g * g;
                const double mean = state[0] / (1 - std::pow(0.8, step));
                const double square = state[1] / (1 - std::pow(0.9, step));
                return p * (1 - 0.1 * decay) - 0.1 * mean / (std::sqrt(square) + 1e-3);
              });
}

TEST_CASE("SGD follows its formula, with and without momentum") {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) {
        continue;
      }
      const auto parameters = two_parameters();
      const auto optimizer = optim::sgd(parameters, {.momentum = momentum, .nesterov = nesterov},
                                        {.weight_decay = 0.2});
      check_steps(parameters, *optimizer,
                  [&](double p, double g, double(&state)[2], int step, double decay) {
                    g += decay * p;
                    state[0] = step == 1 ? g : momentum * state[0] + g;
                    const double change = nesterov ? g + momentum * state[0] : state[0];
                    return p - 0.1 * (momentum == 0 ? g : change);
                  });
    }
  }
}

TEST_CASE("a parameter without a gradient stays, and a gradient in another layout is refused") {
  const auto parameters = two_parameters();
  const auto optimizer = optim::sgd(parameters, {});
  const std::vector<double> before = to_doubles(parameters[0]->value);
  parameters[1]->value.grad() = full({4}, 1, DType::f64);
  optimizer->step(0.1);
  CHECK(to_doubles(parameters[0]->value) == before);
  CHECK(to_doubles(parameters[1]->value)[0] == Approx(std::sin(1.0) - 0.1));

  set_current_rank(0);
  const Layout whole = Layout::replicated(DeviceMesh::make({"data"}, {1}));
  parameters[0]->value.grad() = from_local(full({2, 3}, 1, DType::f64), whole);
  CHECK_THROWS_WITH(optimizer->step(0.1),
                    Catch::Contains("optimizer: the gradient of 'matrix' has the wrong layout"));
}

TEST_CASE("one tensor for two parameters' gradients or states is an error of the step") {
  const std::vector<nn::ParameterPointer> parameters = {parameter("a", {2, 3}),
                                                        parameter("b", {2, 3})};
  const auto optimizer = optim::adamw(parameters, {});
  const Tensor gradient = full({2, 3}, 1, DType::f64);
  for (const nn::ParameterPointer& p : parameters) {
    p->value.grad() = gradient;  // read only: fine
  }
  optimizer->step(0.1);
  parameters[1]->value.grad() = detached(parameters[0]->value);
  CHECK_THROWS_WITH(optimizer->step(0.1), Catch::Contains("is written and shares memory with"));
}

TEST_CASE("gradients are clipped in place to the norm that is asked for") {
  // All four gradients are one value until the engine gives each its own memory.
  const auto a = parameter("a", {2, 3});
  const auto b = parameter("b", {2, 3});
  const auto c = parameter("c", {7});
  const std::vector<nn::ParameterPointer> parameters = {a, b, c};
  backward(ops::add(ops::sum(ops::add(a->value, b->value)), ops::sum(c->value)));
  const double norm = optim::global_gradient_norm(parameters);
  CHECK(norm == Approx(std::sqrt(19.0)).epsilon(1e-12));
  const double factor = optim::clip_factor(norm, 1.0);
  CHECK(factor == Approx(1.0 / (std::sqrt(19.0) + 1e-6)).epsilon(1e-12));
  std::vector<Tensor> gradients;
  for (const nn::ParameterPointer& p : parameters) {
    gradients.push_back(p->value.grad());
  }
  ops::foreach_mul_(gradients, factor);
  CHECK(optim::global_gradient_norm(parameters) == Approx(1.0).epsilon(1e-6));
  CHECK(optim::clip_factor(0.5, 1.0) == 1.0);
  CHECK(optim::clip_factor(100, 0) == 1.0);
}

TEST_CASE("schedules follow their closed forms") {
  using optim::ScheduleKind;
  const auto at = [](ScheduleKind kind, std::int64_t step) {
    return optim::Schedule{.kind = kind, .lr = 2, .warmup = 4, .end = 14, .min_ratio = 0.1}.at(
        step);
  };
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::linear}) {
    for (std::int64_t step = 0; step < 4; ++step) {
      CHECK(at(kind, step) == Approx(0.5 * static_cast<double>(step + 1)));
    }
    CHECK(at(kind, 4) == Approx(2));
  }
  for (std::int64_t step = 4; step <= 20; ++step) {
    const double t = std::fmin(static_cast<double>(step - 4) / 10, 1);
    CHECK(at(ScheduleKind::constant, step) == 2);
    CHECK(at(ScheduleKind::linear, step) == Approx(2 - 1.8 * t));
    CHECK(at(ScheduleKind::cosine, step) ==
          Approx(0.2 + 0.9 * (1 + std::cos(std::numbers::pi * t))));
  }
  CHECK(at(ScheduleKind::inverse_sqrt, 15) == Approx(2 * std::sqrt(4.0 / 16)));
  CHECK(at(ScheduleKind::inverse_sqrt, 3) == Approx(2));
  CHECK(at(ScheduleKind::inverse_sqrt, 1'000'000) == Approx(0.2));
  optim::Schedule stable{.kind = ScheduleKind::warmup_stable_decay,
                         .lr = 2,
                         .warmup = 4,
                         .end = 14,
                         .min_ratio = 0.1,
                         .cooldown = 5};
  CHECK(stable.at(0) == Approx(0.5));
  CHECK(stable.at(9) == Approx(2));
  CHECK(stable.at(10) == Approx(0.2 + 1.8 * 4 / 5));
  CHECK(stable.at(13) == Approx(0.2 + 1.8 * 1 / 5));
  CHECK(stable.at(99) == Approx(0.2));
  CHECK(optim::schedule_from_name("wsd").value() == ScheduleKind::warmup_stable_decay);
  CHECK(optim::schedule_from_name("cosine").value() == ScheduleKind::cosine);
  CHECK_FALSE(optim::schedule_from_name("cos").has_value());
}

TEST_CASE("schedules by tokens follow the same forms, for steps of any sizes") {
  using optim::ScheduleKind;
  CHECK(optim::schedule_unit_from_name("tokens").value() == optim::ScheduleUnit::tokens);
  CHECK(optim::schedule_unit_from_name("steps").value() == optim::ScheduleUnit::steps);
  CHECK_FALSE(optim::schedule_unit_from_name("token").has_value());
  constexpr std::int64_t n = 384;  // tokens of a step
  for (const char* name : {"constant", "cosine", "linear", "wsd", "inverse_sqrt"}) {
    for (const std::int64_t warmup : {0, 4}) {
      INFO(name << ", warmup " << warmup);
      const ScheduleKind kind = optim::schedule_from_name(name).value();
      const optim::Schedule steps{
          .kind = kind, .lr = 2, .warmup = warmup, .end = 14, .min_ratio = 0.1, .cooldown = 5};
      optim::Schedule tokens = steps;
      tokens.unit = optim::ScheduleUnit::tokens;
      tokens.warmup *= n;
      tokens.end *= n;
      tokens.cooldown *= n;
      for (std::int64_t step = 0; step < 20; ++step) {
        CHECK(tokens.at(step * n, n) == Approx(steps.at(step)).epsilon(1e-14));
      }
    }
  }
  // Steps of different sizes: 100, 250, 150, 500 and 1000 tokens.
  const optim::Schedule linear{.kind = ScheduleKind::linear,
                               .lr = 2,
                               .unit = optim::ScheduleUnit::tokens,
                               .warmup = 300,
                               .end = 1300,
                               .min_ratio = 0.1};
  CHECK(linear.at(0, 100) == Approx(2 * 100.0 / 300));
  CHECK(linear.at(100, 250) == Approx(2));  // the warmup ends within the step
  CHECK(linear.at(350, 150) == Approx(2 - 1.8 * 50 / 1000));
  CHECK(linear.at(500, 500) == Approx(2 - 1.8 * 200 / 1000));
  CHECK(linear.at(1000, 1000) == Approx(2 - 1.8 * 700 / 1000));
  CHECK(linear.at(2000, 1000) == Approx(0.2));
  const optim::Schedule root{.kind = ScheduleKind::inverse_sqrt,
                             .lr = 2,
                             .unit = optim::ScheduleUnit::tokens,
                             .warmup = 300,
                             .min_ratio = 0.1};
  CHECK(root.at(300, 100) == Approx(2 * std::sqrt(300.0 / 400)));
  CHECK(root.at(300, 900) == Approx(2 * std::sqrt(900.0 / 1200)));  // larger than the warmup
}

TEST_CASE("a schedule that cannot be followed is an error") {
  using optim::ScheduleKind;
  const auto error = [](const optim::Schedule& schedule) {
    try {
      schedule.check();
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::input);
      return std::string(e.what());
    }
    return std::string();
  };
  const optim::Schedule good{
      .kind = ScheduleKind::warmup_stable_decay, .lr = 1, .warmup = 4, .end = 14, .cooldown = 10};
  CHECK(error(good).empty());
  CHECK(error({}).empty());
  auto bad = good;
  bad.cooldown = 11;
  CHECK(error(bad) ==
        "schedule: cooldown does not fit between warmup and end (expected 0 to 10, "
        "got 11)");
  bad.cooldown = -1;
  CHECK_FALSE(error(bad).empty());
  bad = good;
  bad.end = 3;
  CHECK(error(bad) ==
        "schedule: it ends before its warmup is over (expected an end of at least 4, got 3)");
  bad.kind = ScheduleKind::inverse_sqrt;  // has no end
  CHECK(error(bad).empty());
  bad = good;
  bad.warmup = -1;
  CHECK_FALSE(error(bad).empty());
  bad = good;
  bad.min_ratio = 1.5;
  CHECK_FALSE(error(bad).empty());
  bad = good;
  bad.lr = std::nan("");
  CHECK_FALSE(error(bad).empty());
}
