// Redistributions are resolved once: the caches are bounded, and follow the links.
#include <cstdint>
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

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::numbered;
using dtensor_test::on_ranks;

TEST_CASE("shapes that change at every step do not fill the caches of redistributions") {
  const DeviceMesh mesh = DeviceMesh::make({"a", "b"}, {2, 2});
  const Layout rows = Layout::make(mesh, {Shard(0), Replicate()});
  const Layout columns = Layout::make(mesh, {Shard(1), Shard(0)});
  on_ranks(4, [&](int) {
    const Tensor used_always = distribute(numbered({4, 4}), rows);
    std::int64_t most = 0;
    for (std::int64_t extent = 1; extent <= 3000; ++extent) {
      // Without data: what changes is what is planned.
      const Tensor local =
          empty(local_shape({extent, 3}, rows, my_coordinates(mesh)), DType::f32, meta);
      const Tensor x = from_local(local, rows, Dims{extent, 3});
      check(redistribute(x, columns).layout() == columns, "the layout");
      if (extent % 500 == 0) {
        check(dtensor_test::values(redistribute(used_always, columns)) ==
                  dtensor_test::part_of(numbered({4, 4}), columns),
              "the values, of a shape that is always used");
      }
      most = std::max(most, propagation_statistics().redistributions);
    }
    check(most <= 4 * 1024, "bounded, got " + std::to_string(most));
  });
}

TEST_CASE("a redistribution is planned again when a link has changed") {
  const DeviceMesh mesh = DeviceMesh::make({"near", "far"}, {2, 2});
  const Layout from = Layout::make(mesh, {Shard(0), Shard(0)});
  const Layout to = Layout::replicated(mesh);
  const Tensor whole = numbered({8, 2});
  const auto collectives = [&] {
    std::vector<std::string> axes;
    on_ranks(4, [&](int) {
      const Tensor x = distribute(whole, from);
      const CommunicationReport report;
      check(dtensor_test::values(redistribute(x, to)) == to_doubles(whole), "the values");
      if (current_rank() == 0) {
        for (const Communication& entry : report.entries()) {
          axes.push_back(entry.axis);
        }
      }
    });
    return axes;
  };
  // One rank's thread, before and after: its cache must not hold what was right before.
  on_ranks(4, [&](int) {
    const Tensor x = distribute(whole, from);
    const auto steps = [&] {
      const CommunicationReport report;
      check(dtensor_test::values(redistribute(x, to)) == to_doubles(whole), "the values");
      return report.entries().size();
    };
    check(steps() == 1, "one gather over both axes");
    collective::World::current().everyone().barrier();
    if (current_rank() == 0) {
      // A second collective is cheaper than the whole over the slow link.
      set_link(mesh, 1, {.latency = 0, .bandwidth = 1e3});
      set_link(mesh, 0, {.latency = 0, .bandwidth = 1e9});
    }
    collective::World::current().everyone().barrier();
    check(steps() == 2, "one gather for each axis");
    collective::World::current().everyone().barrier();
    if (current_rank() == 0) {
      set_link(mesh, 0, {});
      set_link(mesh, 1, {});
    }
  });
  CHECK(collectives() == std::vector<std::string>{"near+far"});
}
