// What is kept for shapes that change all the time.
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.calls;
import tessera.placement;

using namespace tessera;
using collective::CallKind;

TEST_CASE("plans for ever new shapes do not fill the memory") {
  const DeviceMesh mesh = DeviceMesh::make({"bounded"}, {4});
  const Layout rows = Layout::make(mesh, {Shard(0)});
  const Layout columns = Layout::make(mesh, {Shard(1)});
  std::int64_t extent = 0;
  const auto plan_others = [&](int count) {
    for (int i = 0; i < count; ++i) {
      plan_redistribute(rows, columns, {++extent, 8}, 4);
    }
  };
  plan_others(3 << 12);  // more than are kept
  const std::size_t before = mallinfo2().uordblks;
  plan_others(8 << 12);
  CHECK(mallinfo2().uordblks < before + (std::size_t{1} << 20));  // each has hundreds of bytes
}

TEST_CASE("a plan stays valid for the next 255 plans of its thread") {
  const DeviceMesh mesh = DeviceMesh::make({"valid"}, {2});
  const Layout rows = Layout::make(mesh, {Shard(0)});
  const Layout whole = Layout::replicated(mesh);
  for (std::int64_t round = 0; round < 40; ++round) {
    const Dims shape{2, 1 + round};
    const Plan& plan = plan_redistribute(rows, whole, shape, 4);
    for (std::int64_t other = 0; other < 255; ++other) {
      plan_redistribute(rows, whole, {4 + round, 1 + other}, 4);
    }
    CHECK(plan.shape == shape);
    REQUIRE(plan.steps.size() == 1);
    CHECK(plan.steps[0].kind == CallKind::all_gather);
    CHECK(plan.steps[0].bytes == 4 * (1 + round));
  }
}
