// L-BFGS against torch.optim.LBFGS's stored curves, on one rank and in every layout.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
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

#include "curves.hpp"
#include "parameters.hpp"

using namespace tessera;
using LayoutOf = std::function<Layout(const Dims&)>;

namespace {

/// The loss of tests/reference/optimizer_curves.py's run_lbfgs, with gradients from autograd on the
/// whole parameters, or by its formula for distributed ones.
class Problem {
 public:
  explicit Problem(const LayoutOf& layout_of) : quadratic_(layout_of), layout_of_(layout_of) {}

  double operator()() {
    std::vector<std::vector<double>> values;
    double sum = 0;
    for (std::size_t k = 0; k < parameters().size(); ++k) {
      values.push_back(quadratic_.values(k));
      for (const double p : values.back()) {
        sum += p;
      }
    }
    double loss = 0.1 * sum * sum;
    for (std::size_t k = 0; k < parameters().size(); ++k) {
      const Tensor gradient = empty(optim_test::curve_shapes()[k], DType::f64);
      for (std::size_t i = 0; i < values[k].size(); ++i) {
        const auto at = static_cast<double>(i);
        const double d = values[k][i] - std::cos(2 * at);
        const double a = 1 + std::sin(at) / 2;
        loss += a * d * d / 2 + std::pow(d, 4) / 4;
        gradient.data<double>()[i] = a * d + std::pow(d, 3) + 0.2 * sum;
      }
      if (!grad_enabled()) {
        fail("closures record gradients");
      }
      parameters()[k]->value.grad() =
          layout_of_ ? distribute(gradient, layout_of_(gradient.shape())) : gradient;
    }
    return loss;
  }

  const std::vector<nn::ParameterPointer>& parameters() const { return quadratic_.parameters; }
  std::vector<double> values(std::size_t k) const { return quadratic_.values(k); }

 private:
  optim_test::Quadratic quadratic_;
  LayoutOf layout_of_;
};

optim::LbfgsOptions options_of(const nlohmann::json& stored) {
  const auto& o = stored.at("options");
  return {.lr = stored.at("lr"),
          .max_iter = o.value("max_iter", 20),
          .max_eval = o.value("max_eval", 0),
          .tolerance_grad = o.value("tolerance_grad", 1e-7),
          .history_size = o.value("history_size", 100),
          .strong_wolfe = stored.at("strong_wolfe")};
}

/// What differs from the stored curve; empty: nothing. `resume_at`: the step before which a fresh
/// optimizer takes the state.
std::string compared(const nlohmann::json& stored, const LayoutOf& layout_of,
                     std::size_t resume_at = 0) {
  Problem problem(layout_of);
  auto optimizer = std::make_unique<optim::Lbfgs>(problem.parameters(), options_of(stored));
  const auto& losses = stored.at("losses");
  const auto differs = [](double got, double expected) {
    return !(std::abs(got - expected) < 1e-8 * std::max(1.0, std::abs(expected)));
  };
  for (std::size_t step = 0; step < losses.size(); ++step) {
    if (step == resume_at && step > 0) {
      const StateDict saved = optimizer->state();
      optimizer = std::make_unique<optim::Lbfgs>(problem.parameters(), options_of(stored));
      optimizer->load(saved);
    }
    const double loss = optimizer->step([&] { return problem(); });
    if (differs(loss, losses[step])) {
      return "step " + std::to_string(step) + ": loss " + std::to_string(loss);
    }
  }
  if (optimizer->evaluations() != stored.at("evaluations").get<std::int64_t>()) {
    return std::to_string(optimizer->evaluations()) + " evaluations";
  }
  for (std::size_t k = 0; k < problem.parameters().size(); ++k) {
    const std::vector<double> values = problem.values(k);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (differs(values[i], stored.at("final")[k][i])) {
        return "final value " + std::to_string(i) + " of " + std::to_string(k);
      }
    }
  }
  return {};
}

}  // namespace

TEST_CASE("L-BFGS follows torch's curves, with as many evaluations") {
  for (const auto& stored : optim_test::stored_curves("lbfgs")) {
    INFO(stored.at("name").get<std::string>());
    CHECK(compared(stored, {}) == "");
    CHECK(compared(stored, {}, 2) == "");  // its state is all that it continues from
  }
}

TEST_CASE("L-BFGS counts each element once in every layout") {
  struct World {
    Dims mesh;
    std::vector<Placement> placements;
  };
  for (const World& world : std::vector<World>{{{2}, {Shard(0)}},
                                               {{4}, {Shard(0)}},
                                               {{2}, {Replicate()}},
                                               {{2, 2}, {Replicate(), Shard(1)}},
                                               {{2, 2}, {Shard(0), Shard(1)}}}) {
    optim_test::on_mesh(world.mesh, [&](const DeviceMesh& mesh) {
      for (const auto& stored : optim_test::stored_curves("lbfgs")) {
        const std::string wrong = compared(stored, [&](const Dims& shape) {
          return optim_test::layout_of(mesh, world.placements, shape);
        });
        if (!wrong.empty()) {
          fail(stored.at("name").get<std::string>() + ": " + wrong);
        }
      }
    });
  }
}

TEST_CASE("L-BFGS minimizes a loss with gradients from autograd, and refuses what it cannot do") {
  const auto p = optim_test::parameter("p", {4});
  optim::Lbfgs optimizer({p}, {.strong_wolfe = true});
  const auto closure = [&] {
    p->value.grad() = Tensor();
    const Tensor loss = ops::sum(ops::square(ops::add_scalar(p->value, -3)));
    backward(loss);
    return loss.item();
  };
  CHECK(optimizer.step(closure) > 1);
  for (const double value : to_doubles(p->value)) {
    CHECK(value == Approx(3).margin(1e-6));
  }
  CHECK_THROWS_WITH(
      optim::Lbfgs({p}, {.max_iter = 0}),
      Catch::Contains("lbfgs: max_iter is out of range (expected at least 1, got 0)"));
  CHECK_THROWS_WITH(optimizer.step([] { return std::nan(""); }),
                    Catch::Contains("lbfgs: the loss is nan"));
  StateDict other = optimizer.state();
  other.tensors["gradient.p"] = zeros({5}, DType::f64);
  CHECK_THROWS_WITH(optimizer.load(other), Catch::Contains("no good 'gradient.p'"));
  p->value.set_requires_grad(false);
  CHECK_THROWS_WITH(optim::Lbfgs({p}), Catch::Contains("none of the parameters is trained"));
}
