// Values that are dropped and computed again: what the pass and a budget of memory change.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.passes;

#include "executed.hpp"
#include "program_text.hpp"

using namespace tessera;
using graph_test::program;
using graph_test::result_of;
using testing::contains;
using testing::error_of;

namespace {

template <class Executes>
std::vector<double> result_by(const Program& program) {
  Executes executor(program);
  return result_of(executor);
}

/// Of the calls that are made again, in their order.
std::vector<std::string> made_again(const Program& program) {
  std::vector<std::string> names;
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      if (i.op != nullptr && program.scopes[i.scope].phase == Phase::recomputation) {
        names.push_back(i.op->name);
      }
    }
  }
  return names;
}

struct Changed {
  Program program;
  std::int64_t before = 0;
  std::int64_t after = 0;
};

/// The pass, whose program has the same values (run_passes checks) and the same bits.
Changed recomputed(const std::string& body) {
  Changed changed{.program = program(body)};
  const std::vector<double> expected = result_by<Replay>(changed.program);
  const std::vector<graph::PassReport> reports =
      graph::run_passes(changed.program, std::vector<std::string>{"lifetimes", "recompute"});
  changed.before = reports[1].peak_before;
  changed.after = reports[1].peak_after;
  CHECK(result_by<Replay>(changed.program) == expected);
  CHECK(result_by<graph::PlannedExecutor>(changed.program) == expected);
  return changed;
}

using Names = std::vector<std::string>;

// Between the first use of %2 and the last one, %4 and %5 are needed with it.
const std::string peak =
    "  %3: f32[] = sum(%2; dims=[], keepdim=false)\n"
    "  %4: f32[256] = sin(%0)\n"
    "  %5: f32[256] = cos(%0)\n"
    "  %6: f32[256] = mul(%4, %5)\n"
    "  %7: f32[] = sum(%6; dims=[], keepdim=false)\n"
    "  %8: f32[256] = mul(%2, %7)\n"
    "output %8 = y\n";

}  // namespace

TEST_CASE("recompute: what is cheap is not kept over the peak of memory") {
  const Changed changed =
      recomputed("input %0: f32[256] = x\nsection step\n  %2: f32[256] = exp(%0)\n" + peak);
  CHECK(made_again(changed.program) == Names{"exp"});
  CHECK(changed.before >= 4 * 1024);
  CHECK(changed.after < changed.before - 1000);
}

TEST_CASE("recompute: operands that are gone are made again too, before what needs them") {
  const Changed changed = recomputed(
      "input %0: f32[256] = x\nsection step\n  %1: f32[256] = exp(%0)\n"
      "  %2: f32[256] = neg(%1)\n" +
      peak);
  CHECK(made_again(changed.program) == Names{"exp", "neg"});
  CHECK(changed.after < changed.before - 1000);
}

TEST_CASE("recompute: views are made of what was made again") {
  const Changed changed = recomputed(
      "input %0: f32[16, 16] = x\nsection step\n  %1: f32[16, 16] = exp(%0)\n"
      "  %2: f32[16, 16] = transpose(%1; dim0=0, dim1=1)\n"
      "  %9: f32[4] = memory.alias(%1; strides=[3], offset=7)\n"
      "  %3: f32[] = sum(%2; dims=[], keepdim=false)\n"
      "  %4: f32[16, 16] = sin(%0)\n"
      "  %5: f32[16, 16] = cos(%0)\n"
      "  %6: f32[16, 16] = mul(%4, %5)\n"
      "  %7: f32[] = sum(%6; dims=[], keepdim=false)\n"
      "  %8: f32[16, 16] = mul(%2, %7)\n"
      "  %10: f32[] = sum(%9; dims=[], keepdim=false)\n"
      "  %11: f32[16, 16] = mul(%8, %10)\n"
      "output %11 = y\n");
  CHECK(made_again(changed.program) == Names{"exp"});
  CHECK(changed.after < changed.before - 1000);
}

TEST_CASE("recompute: what was sent to another rank can be made again") {
  Program sends = program(
      "input %0: f32[256] = x\nsection step\n  %2: f32[256] = exp(%0)\n"
      "  send(%2; peer=1, tag=3, group=ranks 0 1)\n" +
      peak);
  graph::run_passes(sends, std::vector<std::string>{"lifetimes", "recompute"});
  CHECK(made_again(sends) == Names{"exp"});
}

TEST_CASE("recompute: products are kept") {
  std::string body =
      "input %0: f32[16, 16] = x\nsection step\n  %2: f32[16, 16] = mm(%0, %0)\n" + peak;
  for (std::size_t at = body.find("[256]"); at != std::string::npos; at = body.find("[256]")) {
    body.replace(at, 5, "[16, 16]");
  }
  CHECK(made_again(recomputed(body).program).empty());
}

TEST_CASE("recompute: a value stays whose operand was written since") {
  const Changed changed = recomputed(
      "input %0: f32[256] = x\ninput %1: f32[256] = w\nsection step\n  %2: f32[256] = exp(%1)\n"
      "  %3: f32[] = sum(%2; dims=[], keepdim=false)\n"
      "  neg_(%1)\n"
      "  %4: f32[256] = sin(%0)\n"
      "  %5: f32[256] = cos(%0)\n"
      "  %6: f32[256] = mul(%4, %5)\n"
      "  %7: f32[] = sum(%6; dims=[], keepdim=false)\n"
      "  %8: f32[256] = mul(%2, %7)\n"
      "output %8 = y\n");
  CHECK(made_again(changed.program).empty());
  CHECK(changed.after == changed.before);
}

TEST_CASE("recompute: a value's operand may be in another memory by then") {
  // %2's operand is dropped, and its value is computed elsewhere before %2 is next used.
  const Changed changed = recomputed(
      "input %0: f32[256] = x\nsection step\n"
      "  %1: f32[256] = memory.empty()\n  copy_(%1, %0)\n  neg_(%1)\n  %2: f32[256] = exp(%1)\n"
      "  %3: f32[] = sum(%2; dims=[], keepdim=false)\n"
      "  %4: f32[256] = sin(%0)\n"
      "  %5: f32[256] = cos(%0)\n"
      "  %6: f32[256] = mul(%4, %5)\n"
      "  %7: f32[] = sum(%6; dims=[], keepdim=false)\n"
      "  %9: f32[256] = memory.empty()\n  copy_(%9, %0)\n  neg_(%9)\n"
      "  %8: f32[256] = mul(%2, %7)\n"
      "  %10: f32[256] = mul(%8, %9)\n"
      "output %10 = y\n");
  CHECK(made_again(changed.program) == Names{"exp"});
}

TEST_CASE("a budget of memory is met, by products where nothing else suffices, or refused") {
  const std::string body =
      "input %0: f32[16, 16] = x\nsection step\n  %1: f32[16, 16] = mm(%0, %0)\n"
      "  %2: f32[16, 16] = exp(%1)\n"
      "  %3: f32[] = sum(%2; dims=[], keepdim=false)\n"
      "  %4: f32[16, 16] = sin(%0)\n"
      "  %5: f32[16, 16] = cos(%0)\n"
      "  %6: f32[16, 16] = mul(%4, %5)\n"
      "  %7: f32[] = sum(%6; dims=[], keepdim=false)\n"
      "  %8: f32[16, 16] = mul(%2, %1)\n"
      "  %9: f32[16, 16] = mul(%8, %7)\n"
      "output %9 = y\n";
  const std::int64_t inputs = 1024;
  const Program whole = program(body);
  const std::vector<double> expected = result_by<Replay>(whole);
  const auto within = [&](std::int64_t budget) {
    Program changed = whole;
    const graph::MemoryFit fit = graph::fit_memory(changed, budget);
    CHECK(fit.bytes <= budget);
    CHECK(fit.calls == static_cast<int>(made_again(changed).size()));
    graph::PlannedExecutor planned(changed);
    CHECK(result_of(planned) == expected);
    CHECK(planned.memory()->block_bytes + inputs == fit.bytes);
    CHECK(result_by<Replay>(changed) == expected);
    return made_again(changed);
  };
  CHECK(within(inputs + 4 * 1024 + 256).empty());
  CHECK(within(inputs + 3 * 1024 + 256) == Names{"exp"});
  CHECK(within(inputs + 2 * 1024 + 256) == Names{"mm", "exp"});
  Program changed = whole;
  const std::string error = error_of([&] { graph::fit_memory(changed, inputs + 1024); });
  CHECK(contains(error, "memory budget: the step needs at least 3.1 KiB at once (got 2.0 KiB)"));
  CHECK(changed.to_text() == whole.to_text());
}
