// Adam and AdamW with 8-bit state: the maps, one step against a plain loop, and curves near those
// of f32.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;

#include "curves.hpp"
#include "parameters.hpp"

using namespace tessera;

namespace {

/// bitsandbytes' create_dynamic_map, as tests/reference/quantization_maps.py stores it.
std::vector<double> stored_map(const char* name) {
  std::ifstream file(TESSERA_SOURCE_DIR "/tests/reference/data/quantization_maps.json");
  return nlohmann::json::parse(file).at(name).get<std::vector<double>>();
}

std::vector<Tensor> one(const Tensor& x) { return {x}; }

/// A moment as codes and scales, in plain C++: rows of blocks of 256.
struct Moment {
  Moment(const char* name, std::int64_t rows, std::int64_t row)
      : map(stored_map(name)), width(row), values(static_cast<std::size_t>(rows * row), 0) {}

  /// Rounds the values as 8 bits do.
  void round() {
    for (std::size_t start = 0; start < values.size(); start += static_cast<std::size_t>(width)) {
      for (std::int64_t first = 0; first < width; first += 256) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(start) + first;
        const auto end = begin + std::min<std::int64_t>(256, width - first);
        double scale = 0;
        std::for_each(begin, end, [&](double x) { scale = std::max(scale, std::abs(x)); });
        for (auto x = begin; x != end && scale > 0; ++x) {
          const double share = *x / scale;
          const auto nearest = std::ranges::min_element(
              map, [&](double a, double b) { return std::abs(a - share) < std::abs(b - share); });
          *x = *nearest * scale;
        }
      }
    }
  }

  std::vector<double> map;
  std::int64_t width;
  std::vector<double> values;
};

nn::ParameterPointer f32_parameter(const std::string& name, const Dims& shape) {
  auto made = std::make_shared<nn::Parameter>(shape, DType::f32, nn::Initialization{});
  made->name = name;
  made->value = empty(shape, DType::f32);
  for (std::int64_t i = 0; i < made->value.numel(); ++i) {
    made->value.data<float>()[i] = static_cast<float>(std::sin(1 + static_cast<double>(i)));
  }
  made->value.set_requires_grad();
  return made;
}

Tensor gradient_of(const Tensor& parameter, int step) {
  const Tensor whole = parameter.is_distributed() ? full_tensor(parameter) : parameter;
  const std::vector<double> p = to_doubles(whole);
  const Tensor gradient = empty(whole.shape(), DType::f32);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const auto at = static_cast<double>(i);
    gradient.data<float>()[i] =
        static_cast<float>(p[i] - std::cos(2 * at) + 0.3 * std::sin(0.37 * at + 1.3 * step));
  }
  return parameter.is_distributed() ? distribute(gradient, parameter.layout()) : gradient;
}

double loss_of(const Tensor& parameter) {
  double sum = 0;
  const std::vector<double> p = to_doubles(full_tensor(parameter));
  for (std::size_t i = 0; i < p.size(); ++i) {
    sum += std::pow(p[i] - std::cos(2 * static_cast<double>(i)), 2) / 2;
  }
  return sum / static_cast<double>(p.size());
}

}  // namespace

TEST_CASE("a step with 8-bit state is a plain loop's, for rows that end within a block") {
  const std::int64_t rows = 3;
  const std::int64_t row = 300;
  const Tensor p = zeros({rows, row}, DType::f64);
  std::vector<double> expected(static_cast<std::size_t>(rows * row), 0);
  const Tensor codes[] = {zeros(p.shape(), DType::u8), zeros(p.shape(), DType::u8)};
  const Tensor scales[] = {zeros(ops::quantized_blocks(p.shape()), DType::f64),
                           zeros(ops::quantized_blocks(p.shape()), DType::f64)};
  CHECK(scales[0].shape() == Dims{3, 2});
  Moment m("signed", rows, row);
  Moment v("unsigned", rows, row);
  for (int step = 1; step <= 5; ++step) {
    const Tensor g = zeros(p.shape(), DType::f64);
    for (std::int64_t i = 0; i < g.numel(); ++i) {
      const double decades = std::pow(10.0, -static_cast<double>(i % 7));
      g.data<double>()[i] = decades * std::sin(0.7 * static_cast<double>(i) + step);
    }
    const auto call = step % 2 == 0 ? ops::adam_8bit_ : ops::adamw_8bit_;
    call(one(p), one(g), one(codes[0]), one(scales[0]), one(codes[1]), one(scales[1]),
         {.lr = 0.1,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-3,
          .weight_decay = 0.1,
          .grad_scale = 0.5,
          .step = step});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double& x = expected[i];
      const bool decoupled = step % 2 == 1;
      const double gradient = 0.5 * g.data<double>()[i] + (decoupled ? 0 : 0.1 * x);
      m.values[i] = 0.9 * m.values[i] + 0.1 * gradient;
      v.values[i] = 0.95 * v.values[i] + 0.05 * gradient * gradient;
      const double root = std::sqrt(v.values[i] / (1 - std::pow(0.95, step)));
      x = x * (decoupled ? 1 - 0.1 * 0.1 : 1) -
          0.1 * m.values[i] / (1 - std::pow(0.9, step)) / (root + 1e-3);
    }
    m.round();
    v.round();
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs(to_doubles(p)[i] - expected[i]));
    }
    CHECK(worst < 1e-5);  // the maps are in f32
  }
}

TEST_CASE("errors of 8-bit state name the operand") {
  const Tensor p = zeros({4, 300});
  const auto step = [&](const Tensor& code, const Tensor& scale, bool amsgrad = false) {
    ops::adam_8bit_(one(p), one(zeros(p.shape())), one(code), one(scale),
                    one(zeros(p.shape(), DType::u8)), one(zeros({4, 2})),
                    {.lr = 0.1, .grad_scale = 1, .step = 1, .amsgrad = amsgrad});
  };
  CHECK_THROWS_WITH(step(zeros(p.shape()), zeros({4, 2})),
                    Catch::Contains("adam_8bit_: exp_avgs[0] has a wrong type (expected u8"));
  CHECK_THROWS_WITH(step(zeros(p.shape(), DType::u8), zeros({4})),
                    Catch::Contains("exp_avg_scales[0] has a wrong shape (expected [4, 2]"));
  CHECK_THROWS_WITH(step(zeros(p.shape(), DType::u8), zeros({4, 2}), true),
                    Catch::Contains("amsgrad has no 8-bit state"));
}

TEST_CASE("state_bits = 8 quarters the state and stays near the f32 curve, in every layout") {
  const std::vector<std::vector<Placement>> layouts = {{Replicate()}, {Shard(0)}, {Shard(1)}};
  std::vector<double> losses[2];
  for (const auto& placements : layouts) {
    optim_test::on_mesh({2}, [&](const DeviceMesh& mesh) {
      std::vector<double> last;
      for (const char* options : {"{}", R"({"state_bits": 8})"}) {
        const auto matrix = f32_parameter("matrix", {16, 512});
        const auto vector = f32_parameter("vector", {100});
        for (const nn::ParameterPointer& p : {matrix, vector}) {
          p->value = distribute(detached(p->value),
                                optim_test::layout_of(mesh, placements, p->value.shape()));
          p->value.set_requires_grad();
        }
        optim::Optimizer optimizer({matrix, vector}, optim::load_rule("adamw", options));
        for (int step = 1; step <= 50; ++step) {
          for (const nn::ParameterPointer& p : {matrix, vector}) {
            p->value.grad() = gradient_of(p->value, step);
          }
          optimizer.step(0.05);
        }
        last.push_back(loss_of(matrix->value));
        const StateDict state = optimizer.state();
        const bool coded = last.size() == 2;
        const DType dtype = state.tensors.at("exp_avg.matrix").dtype();
        if (dtype != (coded ? DType::u8 : DType::f32) ||
            state.tensors.at("exp_avg.vector").dtype() != DType::f32 ||
            state.tensors.contains("exp_avg_scale.vector")) {
          fail("the states have other types");
        }
        if (coded && state.tensors.at("exp_avg_sq_scale.matrix").local().numel() * 256 !=
                         state.tensors.at("exp_avg_sq.matrix").local().numel()) {
          fail("a scale for each block");
        }
      }
      if (!(std::abs(last[0] - last[1]) < 0.02 * last[0] && last[1] < 0.1)) {
        fail("losses " + std::to_string(last[0]) + " and " + std::to_string(last[1]));
      }
    });
  }
}

TEST_CASE("shards that cut blocks keep their state in f32") {
  optim_test::on_mesh({2}, [](const DeviceMesh& mesh) {
    for (const auto& [shape, placement, coded] :
         std::vector<std::tuple<Dims, Placement, bool>>{{{64, 300}, Shard(1), false},
                                                        {{64, 300}, Shard(0), true},
                                                        {{5, 1000}, Shard(0), true},
                                                        {{8192}, Shard(0), true},
                                                        {{8000}, Shard(0), false},
                                                        {{8000}, Replicate(), true},
                                                        {{4, 16, 128}, Shard(1), false},
                                                        {{4, 16, 128}, Shard(0), true}}) {
      const auto p = f32_parameter("p", shape);
      p->value = distribute(detached(p->value), Layout::make(mesh, {placement}));
      p->value.set_requires_grad();
      optim::Optimizer optimizer({p}, optim::load_rule("adam", R"({"state_bits": 8})"));
      p->value.grad() = gradient_of(p->value, 1);
      optimizer.step(0.05);
      const bool is_coded = optimizer.state().tensors.at("exp_avg.p").dtype() == DType::u8;
      if (is_coded != coded) {
        fail(to_string(shape) + to_string(placement) + " has the wrong type of state");
      }
    }
  });
}
