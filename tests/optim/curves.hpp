// The noisy quadratic of tests/reference/optimizer_curves.py: the same steps, in any layout.
// Include after the imports and parameters.hpp's.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "on_ranks.hpp"
#include "parameters.hpp"

namespace optim_test {

using tessera::Dims;
using tessera::Tensor;

inline const std::vector<Dims>& curve_shapes() {
  static const std::vector<Dims> shapes = {{6, 5}, {7}, {3, 2, 4}, {1, 5}, {5, 8}};
  return shapes;
}

inline nlohmann::json stored_curves(const std::string& name = "optimizer") {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/reference/data/" + name + "_curves.json");
  return nlohmann::json::parse(file);
}

/// Shard(d) of a dim that the tensor has; otherwise of its first one.
inline tessera::Layout layout_of(const tessera::DeviceMesh& mesh,
                                 std::vector<tessera::Placement> placements, const Dims& shape) {
  for (tessera::Placement& p : placements) {
    if (p.is_shard() && p.dim() >= static_cast<int>(shape.size())) {
      p = tessera::Shard(0);
    }
  }
  return tessera::Layout::make(mesh, placements);
}

/// Runs `body` on as many ranks as the mesh has.
inline void on_mesh(const Dims& shape,
                    const std::function<void(const tessera::DeviceMesh&)>& body) {
  std::vector<std::string> axes;
  for (int axis = 0; axis < shape.size(); ++axis) {
    axes.push_back("axis" + std::to_string(axis));
  }
  tessera::testing::on_ranks(static_cast<int>(shape.product()),
                             [&](int) { body(tessera::DeviceMesh::make(axes, shape)); });
}

/// The noisy quadratic as a function of its parameters.
class Quadratic {
 public:
  /// `layout_of`: where each parameter is; null: plain tensors.
  explicit Quadratic(std::function<tessera::Layout(const Dims&)> layout_of)
      : layout_of_(std::move(layout_of)) {
    for (const Dims& shape : curve_shapes()) {
      auto made = parameter("p" + std::to_string(parameters.size()), shape);
      made->value = placed(detached(made->value));
      made->value.set_requires_grad();
      parameters.push_back(std::move(made));
    }
  }

  std::vector<double> values(std::size_t k) const {
    const Tensor& x = parameters[k]->value;
    return to_doubles(x.is_distributed() ? full_tensor(x) : x);
  }

  double loss() const {
    double sum = 0;
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const std::vector<double> p = values(k);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const auto at = static_cast<double>(i);
        sum += (1 + std::sin(at) / 2) * std::pow(p[i] - std::cos(2 * at), 2) / 2;
      }
    }
    return sum;
  }

  /// Gives every parameter its gradient of step t, from 1.
  void set_gradients(int t) {
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      const std::vector<double> p = values(k);
      const Tensor gradient = tessera::empty(curve_shapes()[k], tessera::DType::f64);
      for (std::size_t i = 0; i < p.size(); ++i) {
        const auto at = static_cast<double>(i);
        gradient.data<double>()[i] = (1 + std::sin(at) / 2) * (p[i] - std::cos(2 * at)) +
                                     0.3 * std::sin(0.37 * at + 1.3 * t);
      }
      parameters[k]->value.grad() = placed(gradient);
    }
  }

  std::vector<tessera::nn::ParameterPointer> parameters;

 private:
  Tensor placed(const Tensor& x) const {
    return layout_of_ ? distribute(x, layout_of_(x.shape())) : x;
  }

  std::function<tessera::Layout(const Dims&)> layout_of_;
};

/// The largest difference of losses and final values, relative to the values where these are above
/// 1.
inline double difference_from(const nlohmann::json& stored,
                              const std::function<tessera::Layout(const Dims&)>& layout_of) {
  Quadratic problem(layout_of);
  tessera::optim::Optimizer optimizer(
      problem.parameters,
      tessera::optim::load_rule(stored.at("rule").get<std::string>(), stored.at("options").dump()),
      {.weight_decay = stored.at("weight_decay"), .decay = tessera::optim::Decay::all});
  double worst = 0;
  const auto compare = [&](double got, double expected) {
    const double difference = std::abs(got - expected) / std::max(1.0, std::abs(expected));
    worst = std::isfinite(difference) ? std::max(worst, difference) : HUGE_VAL;
  };
  const auto& losses = stored.at("losses");
  for (std::size_t t = 1; t <= losses.size(); ++t) {
    compare(problem.loss(), losses[t - 1]);
    problem.set_gradients(static_cast<int>(t));
    const double part = stored.at("schedule") ? static_cast<double>(t - 1) / 100 : 0;
    optimizer.step(stored.at("lr").get<double>() * (1 - part));
  }
  for (std::size_t k = 0; k < problem.parameters.size(); ++k) {
    const std::vector<double> values = problem.values(k);
    for (std::size_t i = 0; i < values.size(); ++i) {
      compare(values[i], stored.at("final")[k][i]);
    }
  }
  return worst;
}

}  // namespace optim_test
