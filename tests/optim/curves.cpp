// 50 steps of every optimizer against torch.optim's stored curves, on one rank and in every layout.
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

TEST_CASE("every built-in optimizer follows torch's curve of 50 steps") {
  std::set<std::string> seen;
  for (const auto& stored : optim_test::stored_curves()) {
    INFO(stored.at("name").get<std::string>());
    CHECK(optim_test::difference_from(stored, {}) < 1e-11);
    seen.insert(stored.at("rule").get<std::string>());
  }
  for (const std::string& name : optim::built_in_rules()) {
    INFO(name);
    CHECK(seen.contains(name));
  }
}

TEST_CASE("the curves are the same in every layout, also where ranks have empty shards") {
  using Axes = std::vector<Placement>;
  struct World {
    Dims mesh;
    Axes placements;
  };
  const World worlds[] = {{{2}, {Shard(0)}},
                          {{2}, {Shard(1)}},
                          {{2}, {Replicate()}},
                          {{4}, {Shard(0)}},
                          {{2, 2}, {Replicate(), Shard(1)}},
                          {{2, 2}, {Shard(0), Shard(1)}},
                          {{2, 2}, {Shard(0), Shard(0)}}};
  for (const World& world : worlds) {
    optim_test::on_ranks(world.mesh, [&](const DeviceMesh& mesh) {
      for (const auto& stored : optim_test::stored_curves()) {
        const double difference = optim_test::difference_from(stored, [&](const Dims& shape) {
          return optim_test::layout_of(mesh, world.placements, shape);
        });
        if (!(difference < 1e-11)) {
          fail(stored.at("name").get<std::string>() + " differs by " + std::to_string(difference));
        }
      }
    });
  }
}
