// Norms of gradients over mixed meshes and layouts, limits, the gradient scaler.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
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
using optim_test::parameter;
using optim_test::set_gradients;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Parameters of all kinds of layouts on two meshes of the same four ranks, and a plain one.
std::vector<nn::ParameterPointer> mixed(const DeviceMesh& grid, const DeviceMesh& line) {
  const Layout layouts[] = {Layout::make(grid, {Shard(0), Replicate()}),
                            Layout::make(grid, {Shard(0), Shard(1)}),
                            Layout::make(grid, {Replicate(), Shard(1)}),
                            Layout::make(grid, {Replicate(), Replicate()}),
                            Layout::make(line, {Shard(0)}),
                            Layout::make(line, {Replicate()})};
  std::vector<nn::ParameterPointer> all;
  for (const Layout& layout : layouts) {
    auto p = parameter("p" + std::to_string(all.size()), {3, 5});
    set_gradients({p}, static_cast<int>(all.size()));
    const Tensor gradient = p->value.grad();
    p->value = distribute(detached(p->value), layout);
    p->value.set_requires_grad();
    p->value.grad() = distribute(gradient, layout);
    all.push_back(std::move(p));
  }
  all.push_back(parameter("plain", {7}));
  set_gradients({all.back()}, 9);
  all.push_back(parameter("without a gradient", {2}));
  return all;
}

/// Their elements, each once.
std::vector<double> elements(const std::vector<nn::ParameterPointer>& parameters) {
  std::vector<double> all;
  for (const nn::ParameterPointer& p : parameters) {
    if (const Tensor& g = p->value.grad()) {
      const std::vector<double> own = to_doubles(g.is_distributed() ? full_tensor(g) : g);
      all.insert(all.end(), own.begin(), own.end());
    }
  }
  return all;
}

double norm_of(const std::vector<double>& values, double p) {
  double sum = 0;
  for (const double x : values) {
    sum = std::isinf(p) ? std::max(sum, std::abs(x)) : sum + std::pow(std::abs(x), p);
  }
  return std::isinf(p) ? sum : std::pow(sum, 1 / p);
}

void on_mixed(const std::function<void(const std::vector<nn::ParameterPointer>&)>& body) {
  optim_test::on_mesh(
      {2, 2}, [&](const DeviceMesh& grid) { body(mixed(grid, DeviceMesh::make({"line"}, {4}))); });
}

void require_near(double got, double expected, const std::string& what) {
  if (!(std::abs(got - expected) <= 1e-12 * std::max(1.0, std::abs(expected)))) {
    fail(what + ": " + std::to_string(got) + " instead of " + std::to_string(expected));
  }
}

}  // namespace

TEST_CASE("norms count each element once over meshes and layouts of all kinds") {
  on_mixed([](const std::vector<nn::ParameterPointer>& parameters) {
    const std::vector<double> all = elements(parameters);
    for (const double p : {1.0, 2.0, 3.0, 0.5, infinity}) {
      require_near(optim::global_gradient_norm(parameters, p), norm_of(all, p),
                   "norm " + std::to_string(p));
    }
  });
  CHECK(optim::global_gradient_norm({}, 2) == 0);
}

TEST_CASE("gradients are limited by any norm, or by their values") {
  for (const double p : {1.0, 2.0, 3.0, infinity}) {
    on_mixed([p](const std::vector<nn::ParameterPointer>& parameters) {
      const std::vector<double> before = elements(parameters);
      const double norm = norm_of(before, p);
      require_near(optim::clip_gradients(parameters, {.max_norm = norm / 4, .norm = p}), norm,
                   "the norm before");
      const std::vector<double> after = elements(parameters);
      for (std::size_t i = 0; i < before.size(); ++i) {
        require_near(after[i], before[i] * norm / 4 / (norm + 1e-6), "a limited element");
      }
      require_near(optim::clip_gradients(parameters, {.max_norm = norm, .norm = p}),
                   norm_of(after, p), "a norm below the limit");
      if (elements(parameters) != after) {
        fail("gradients below the limit changed");
      }
    });
  }
  on_mixed([](const std::vector<nn::ParameterPointer>& parameters) {
    const std::vector<double> before = elements(parameters);
    optim::clip_gradients(parameters, {.max_value = 0.3});
    const std::vector<double> after = elements(parameters);
    for (std::size_t i = 0; i < before.size(); ++i) {
      require_near(after[i], std::clamp(before[i], -0.3, 0.3), "a limited element");
    }
  });
}

TEST_CASE("a value that is not finite on one rank is seen by all, in every norm") {
  for (const double planted : {infinity, -infinity, std::nan("")}) {
    for (const double p : {1.0, 2.0, 3.0, infinity}) {
      on_mixed([&](const std::vector<nn::ParameterPointer>& parameters) {
        const Tensor local = parameters[1]->value.grad().local();
        if (current_rank() == 3 && local.numel() > 0) {
          local.data<double>()[0] = planted;
        }
        const std::vector<double> before = elements(parameters);
        const double norm = optim::clip_gradients(
            parameters, {.max_norm = 1, .norm = p, .nonfinite = optim::NonFinite::skip});
        if (std::isfinite(norm)) {
          fail("norm " + std::to_string(p) + " does not show " + std::to_string(planted));
        }
        std::string error;
        try {
          optim::clip_gradients(parameters, {.max_norm = 1, .norm = p});
        } catch (const Error& e) {
          error = e.what();
        }
        if (!error.starts_with("clip_gradients: the norm of the gradients is ")) {
          fail("no error: " + error);
        }
      });
    }
  }
}

TEST_CASE("limits that are not limits are errors") {
  const auto error = [](const optim::Clipping& clipping) {
    try {
      clipping.check();
    } catch (const Error& e) {
      CHECK(e.kind() == ErrorKind::input);
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(error({}).empty());
  CHECK(error({.max_norm = 1, .norm = infinity}).empty());
  CHECK(error({.max_norm = -1}) ==
        "clipping: max_norm is not a norm (expected at least 0, got -1)");
  CHECK(error({.max_norm = 1, .norm = 0}).starts_with("clipping: the norm is not one"));
  CHECK(error({.max_norm = 1, .norm = std::nan("")}).starts_with("clipping: the norm is not one"));
  CHECK(error({.max_value = std::nan("")}).starts_with("clipping: max_value"));
  CHECK(error({.max_norm = 1, .max_value = 1}).find("both given") != std::string::npos);
}

TEST_CASE("the scaler falls at once and grows after an interval, as torch's") {
  optim::GradScaler scaler({.init_scale = 1024, .growth_interval = 3});
  const auto update = [&](bool found) {
    scaler.update(found);
    return scaler.scale();
  };
  CHECK(scaler.scale() == 1024);
  CHECK(update(false) == 1024);
  CHECK(update(false) == 1024);
  CHECK(update(true) == 512);  // and counts again
  CHECK(update(false) == 512);
  CHECK(update(false) == 512);
  const StateDict saved = scaler.state();
  CHECK(update(false) == 1024);
  optim::GradScaler resumed({.growth_interval = 3});
  CHECK(resumed.scale() == 65536);
  resumed.load(saved);
  CHECK(resumed.scale() == 512);
  resumed.update(false);
  CHECK(resumed.scale() == 1024);
  CHECK_THROWS_WITH(resumed.load({}), Catch::Contains("the saved state has no good 'scale'"));
  CHECK_THROWS_WITH(optim::GradScaler({.growth_factor = 1}),
                    Catch::Contains("growth_factor is out of range"));
  CHECK_THROWS_WITH(optim::GradScaler({.init_scale = infinity}),
                    Catch::Contains("init_scale is out of range"));
  optim::GradScaler large({.init_scale = 1e38, .growth_factor = 1e3, .growth_interval = 1});
  large.update(false);
  CHECK(large.scale() == 1e38);  // the losses are f32
}
