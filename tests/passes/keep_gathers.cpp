// Gathers that are not made again: which ones, in which order, and what the checks allow.
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.passes;
import tessera.graph;

#include "program_text.hpp"

using namespace tessera;
using testing::error_of;

namespace {

const std::string head =
    "input %0: f32[32] = x\n"
    "input %1: f32[32] = shard\n"
    "input %2: f32[32] = other\n"
    "section step\n";

/// The shard is gathered into new memory, and the product with x is the result.
std::string gathered(int memory, int result, const std::string& shard = "%1") {
  const std::string m = "%" + std::to_string(memory);
  const std::string view = "%" + std::to_string(memory + 1);
  const std::string part = "%" + std::to_string(result);
  return "  " + m + ": f32[64] = memory.empty()\n  " + view + ": f32[64] = memory.alias(" + m +
         "; strides=[1], offset=0)\n  all_gather_into(" + view + ", " + shard +
         "; group=ranks 0 1, identity=1)\n  wait(" + view + ")\n  " + part + ": f32[32] = narrow(" +
         view + "; dim=0, start=16, length=32)\n  %" + std::to_string(result + 1) +
         ": f32[32] = mul(%0, " + part + ")\n";
}

int gathers_in(const std::string& text) { return graph_test::count(text, "all_gather_into"); }

/// The gathers that are left, of which at most so many are spared.
int left(const std::string& body, int most = -1) {
  Program changed = graph_test::program(head + body + "output %101 = y\n");
  graph::keep_gathers(changed, most);
  return gathers_in(changed.to_text());
}

bool is_other_order(const Program& before, const Program& after) {
  return error_of([&] {
           graph::verify_same(before, after);
         }).find("communication or a check of the host is missing, new or in another order") !=
         std::string::npos;
}

}  // namespace

TEST_CASE("keep_gathers: what was gathered before is where it was") {
  const std::string outputs = "output %101 = y\noutput %13 = z\n";
  Program changed = graph_test::program(head + gathered(10, 12) + gathered(20, 100) + outputs);
  graph::run_passes(changed, std::vector<std::string>{"lifetimes", "keep_gathers"});
  CHECK(graph_test::body_of(changed) ==
        head + gathered(10, 12) +
            "  %21: f32[64] = memory.alias(%10; strides=[1], offset=0)\n"
            "  %100: f32[32] = narrow(%21; dim=0, start=16, length=32)\n"
            "  %101: f32[32] = mul(%0, %100)\n" +
            outputs);
}

TEST_CASE("keep_gathers: other values, and what is written, are gathered again") {
  CHECK(left(gathered(10, 12) + gathered(20, 100)) == 1);
  CHECK(left(gathered(10, 12) + gathered(20, 100, "%2")) == 2);
  // The shard, the first memory or the second one are written.
  CHECK(left(gathered(10, 12) + "  add_(%1, %13; alpha=1)\n" + gathered(20, 100)) == 2);
  CHECK(left(gathered(10, 12) + "  add_(%12, %0; alpha=1)\n" + gathered(20, 100)) == 2);
  CHECK(left(gathered(10, 12) + gathered(20, 100) + "  add_(%100, %0; alpha=1)\n") == 2);
}

TEST_CASE("keep_gathers: those that are needed again soonest are kept first") {
  const std::string all =
      gathered(10, 12) + gathered(20, 22, "%2") + gathered(30, 32, "%2") + gathered(40, 100);
  CHECK(left(all) == 2);
  CHECK(left(all, 0) == 4);
  Program changed = graph_test::program(head + all + "output %101 = y\n");
  CHECK(graph::keep_gathers(changed, 1) == 1);
  const std::string text = changed.to_text();
  CHECK(gathers_in(text) == 3);
  CHECK(text.find("all_gather_into(%31") == std::string::npos);
  CHECK(text.find("all_gather_into(%41") != std::string::npos);
  // Of three equal gathers, the last one finds the first one's values, or the second one's.
  const std::string three = gathered(10, 12) + gathered(20, 22) + gathered(30, 100);
  CHECK(left(three) == 1);
  CHECK(left(three, 1) == 2);
}

TEST_CASE("the check after a pass permits to spare repeated collectives only") {
  const auto program = [](const std::string& body) {
    return graph_test::program(head + body + "output %0 = y\n");
  };
  const Program once = program(gathered(10, 12));
  const Program twice = program(gathered(10, 12) + gathered(20, 100));
  CHECK_NOTHROW(graph::verify_same(twice, once));
  CHECK(is_other_order(twice, program("")));
  CHECK(is_other_order(once, twice));
  CHECK(is_other_order(program(gathered(10, 12) + gathered(20, 100, "%2")), once));
  const std::string reduced = ": f32[32] = all_reduce(%1; op=sum, group=ranks 0 1)\n";
  CHECK_NOTHROW(graph::verify_same(program("  %50" + reduced + "  %51" + reduced),
                                   program("  %50" + reduced)));
  CHECK(is_other_order(program("  %50" + reduced + "  add_(%1, %2; alpha=1)\n  %51" + reduced),
                       program("  %50" + reduced + "  add_(%1, %2; alpha=1)\n")));
  const std::string waits = "  wait_readers(%1; group=ranks 0 1)\n";
  CHECK(is_other_order(program(waits + waits), program(waits)));
}

TEST_CASE("keep_gathers: within a budget of memory, as many as there is room for") {
  const std::string all =
      gathered(10, 12) + gathered(20, 22, "%2") + gathered(30, 32, "%2") + gathered(40, 100);
  const Program program = graph_test::program(head + all + "output %101 = y\n");
  const std::vector<std::string> passes = {"lifetimes", "keep_gathers"};
  const auto gathers = [&](std::int64_t budget, int kept) {
    const auto executor = graph::make_executor(
        program, {.passes = passes, .memory_budget = budget, .kept_gathers = kept});
    CHECK(graph::planned_bytes(executor->program()) <= budget);
    return gathers_in(executor->program().to_text());
  };
  const std::int64_t least = graph::planned_bytes(program);
  Program kept = program;
  graph::keep_gathers(kept);
  const std::int64_t most = graph::planned_bytes(kept);
  REQUIRE(most > least);
  CHECK(gathers(most, -1) == 2);
  CHECK(gathers(most - 1, -1) == 3);
  CHECK(gathers(most, 0) == 4);
  CHECK(gathers(most, 1) == 3);
  CHECK(error_of([&] {
          gathers(most - 1, 2);
        }).find("graph.memory_budget: the step needs more with the gathers that it keeps") == 0);
}
