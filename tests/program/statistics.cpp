// What programs cost, with numbers that are computed by hand.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.program;

#include "program_text.hpp"

using namespace tessera;
using graph::ProgramStatistics;
using testing::contains;
using testing::error_of;

namespace {

ProgramStatistics statistics(const std::string& body) {
  return graph::statistics_of(graph_test::program(body));
}

std::vector<std::int64_t> totals(const ProgramStatistics& statistics) {
  std::vector<std::int64_t> all;
  for (const graph::CategoryBytes& live : statistics.live) {
    all.push_back(graph::total_of(live));
  }
  return all;
}

}  // namespace

TEST_CASE("calls, products and live bytes of a small program") {
  const ProgramStatistics s = statistics(
      "input %0: f32[4, 2] parameter = w\n"   // 32 bytes
      "input %1: f64[3] optimizer = state\n"  // 24 bytes
      "section gradients\n"
      "  %2: f32[2, 4] activation = transpose(%0; dim0=0, dim1=1)\n"  // a view: no memory
      "  %3: f32[4, 4] activation = mm(%0, %2)\n"                     // 64 bytes
      "  %4: f32[4, 4] gradient = exp(%3)\n"                          // 64 bytes
      "section update\n"
      "  %5: f32[4, 2] activation = mm(%4, %0)\n"  // 32 bytes; the last use of %4
      "  %6: f32[4, 2] = neg(%5)\n"                // 32 bytes
      "output %6 = y\n");
  CHECK(s.calls == std::map<std::string, int>{{"transpose", 1}, {"mm", 2}, {"exp", 1}, {"neg", 1}});
  CHECK(s.flops == 2.0 * 4 * 4 * 2 + 2.0 * 4 * 2 * 4);
  CHECK(s.collectives.empty());
  CHECK(s.inputs[static_cast<std::size_t>(MemoryCategory::parameter)] == 32);
  CHECK(s.inputs[static_cast<std::size_t>(MemoryCategory::optimizer)] == 24);
  CHECK(graph::total_of(s.inputs) == 56);
  CHECK(totals(s) == std::vector<std::int64_t>{56, 120, 184, 152, 120});
  CHECK(s.live[PlaceIndex(2)][static_cast<std::size_t>(MemoryCategory::gradient)] == 64);
  CHECK(s.live[PlaceIndex(4)][static_cast<std::size_t>(MemoryCategory::gradient)] == 0);
  CHECK(s.peak == 184);
  CHECK(s.peak_at == PlaceIndex(2));
}

TEST_CASE("memory that is released does not count until it is restored") {
  const ProgramStatistics s = statistics(
      "input %0: f32[8] = x\n"  // 32 bytes
      "section step\n"
      "  %1: f32[4] = memory.full(2)\n"  // 16 bytes
      "  memory.release(%1)\n"
      "  %2: f32[8] = neg(%0)\n"  // 32 bytes
      "  memory.restore(%1)\n"
      "  %3: f32[4] = exp(%1)\n"  // 16 bytes
      "  memory.release(%1)\n"
      "output %2 = y\n");
  CHECK(totals(s) == std::vector<std::int64_t>{48, 32, 64, 80, 96, 64});
  CHECK(s.peak == 96);
  CHECK(s.peak_at == PlaceIndex(4));
}

TEST_CASE("collectives are counted by operator, phase and group") {
  const ProgramStatistics s = statistics(
      "input %0: f32[4] = x\n"
      "section step\n"
      "  %1: f32[8] = all_gather_async(%0; dim=0, extent=8, group=ranks 0 1) @ forward\n"
      "  wait(%1) @ forward\n"
      "  %2: f32[8] = all_gather_async(%0; dim=0, extent=8, group=ranks 0 1) @ forward\n"
      "  wait(%2) @ forward\n"
      "  %3: f32[8] = all_gather_async(%0; dim=0, extent=8, group=ranks 0 2) @ forward\n"
      "  wait(%3) @ forward\n"
      "  %4: f32[8] = all_gather_async(%0; dim=0, extent=8, group=ranks 0 1) @ backward\n"
      "  wait(%4) @ backward\n");
  REQUIRE(s.collectives.size() == 3);
  const auto is = [&s](std::size_t at, Phase phase, const std::vector<int>& ranks, int calls,
                       std::int64_t bytes) {
    const graph::CollectiveCount& c = s.collectives[at];
    return c.op == "all_gather_async" && c.phase == phase && c.group == CallGroup{.ranks = ranks} &&
           c.calls == calls && c.bytes == bytes;
  };
  CHECK(is(0, Phase::forward, {0, 1}, 2, 64));
  CHECK(is(1, Phase::forward, {0, 2}, 1, 32));
  CHECK(is(2, Phase::backward, {0, 1}, 1, 32));
  CHECK(s.calls.at("wait") == 4);
}

TEST_CASE("a program that an operator refuses has no statistics") {
  CHECK(contains(error_of([] {
                   statistics(
                       "input %0: f32[4, 2] = x\nsection step\n  %1: f32[4, 4] = mm(%0, %0)\n");
                 }),
                 "section 'step', instruction 1"));
}
