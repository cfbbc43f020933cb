// 50 steps of every optimizer against torch.optim's stored curves, on one rank and in every layout.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
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

/// bf16 keeps three digits; everything else is compared in f64.
double tolerance(const nlohmann::json& stored) {
  return stored.at("options").value("compute", "") == "bf16" ? 0.02 : 1e-11;
}

struct World {
  Dims mesh;
  std::vector<Placement> placements;
};

const std::vector<World>& worlds() {
  static const std::vector<World> all = {{{2}, {Shard(0)}},
                                         {{2}, {Shard(1)}},
                                         {{2}, {Replicate()}},
                                         {{4}, {Shard(0)}},
                                         {{2, 2}, {Replicate(), Shard(1)}},
                                         {{2, 2}, {Shard(0), Shard(1)}},
                                         {{2, 2}, {Shard(0), Shard(0)}}};
  return all;
}

void follows(const std::string& curves) {
  for (const auto& stored : optim_test::stored_curves(curves)) {
    INFO(stored.at("name").get<std::string>());
    CHECK(optim_test::difference_from(stored, {}) < tolerance(stored));
  }
}

void follows_in_every_layout(const std::string& curves) {
  for (const World& world : worlds()) {
    optim_test::on_mesh(world.mesh, [&](const DeviceMesh& mesh) {
      for (const auto& stored : optim_test::stored_curves(curves)) {
        const double difference = optim_test::difference_from(stored, [&](const Dims& shape) {
          return optim_test::layout_of(mesh, world.placements, shape);
        });
        if (!(difference < tolerance(stored))) {
          fail(stored.at("name").get<std::string>() + " differs by " + std::to_string(difference));
        }
      }
    });
  }
}

}  // namespace

TEST_CASE("every built-in optimizer follows torch's curve of 50 steps") {
  follows("optimizer");
  std::set<std::string> seen;
  for (const auto& stored : optim_test::stored_curves()) {
    seen.insert(stored.at("rule").get<std::string>());
  }
  for (const std::string& name : optim::built_in_rules()) {
    INFO(name);
    CHECK(seen.contains(name));
  }
}

TEST_CASE("the curves are the same in every layout, also where ranks have empty shards") {
  follows_in_every_layout("optimizer");
}

TEST_CASE("adafactor follows torch's curves, in every layout") {
  plugin::host().load(TESSERA_ADAFACTOR);
  follows("adafactor");
  follows_in_every_layout("adafactor");
}

TEST_CASE("muon follows torch's curves, in every layout, and adamw those of its other parameters") {
  plugin::host().load(TESSERA_MUON);
  follows("muon");
  follows_in_every_layout("muon");
}

TEST_CASE("the average of asgd is that of the parameters after t0 steps") {
  // A constant gradient g: p is p - lr g t after step t. The average takes p's place until step
  // t0 + 2, and is then the mean of these values from that step on.
  constexpr double lr = 0.5;
  constexpr int t0 = 3;
  const Tensor p = from_values<double>({1, -2, 4}, {3});
  const Tensor gradient = from_values<double>({1, 2, -3}, {3});
  const Tensor average = full({3}, 0, DType::f64);
  const std::vector<double> before = to_doubles(p);
  const std::vector<double> g = to_doubles(gradient);
  for (int step = 1; step <= 8; ++step) {
    const auto list = [](const Tensor& x) { return std::vector<Tensor>{x}; };
    ops::asgd_(list(p), list(gradient), list(average),
               {.lr = lr, .lambd = 0, .alpha = 0.75, .t0 = t0, .grad_scale = 1, .step = step});
    const double mean = (std::min(step, t0 + 2) + step) / 2.0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      CHECK(to_doubles(p)[i] == Approx(before[i] - lr * g[i] * step));
      CHECK(to_doubles(average)[i] == Approx(before[i] - lr * g[i] * mean));
    }
  }
}
