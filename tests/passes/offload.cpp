// Values that are kept in other memory between two uses: where they are, their bits, the budget of
// memory, and what the checks refuse.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.passes;

#include "executed.hpp"
#include "other_memory.hpp"
#include "program_text.hpp"

using namespace tessera;
using graph_test::count;
using graph_test::program;
using graph_test::result_of;
using testing::CountedMemory;
using testing::error_of;

namespace {

std::vector<double> replayed(const Program& program) {
  Replay replay(program);
  return result_of(replay);
}

const std::string begin = "input %0: f32[256] = x\nsection step\n";

// Between the first use of %2 and the last one, %4 and %5 are needed with it.
const std::string peak =
    "  %3: f32[] = sum(%2; dims=[], keepdim=false)\n"
    "  %4: f32[256] = sin(%0)\n"
    "  %5: f32[256] = cos(%0)\n"
    "  %6: f32[256] = mul(%4, %5)\n"
    "  %7: f32[] = sum(%6; dims=[], keepdim=false)\n";
const std::string last_use =
    "  %8: f32[256] = mul(%2, %7)\n"
    "output %8 = y\n";

const std::string value = "  %2: f32[256] = exp(%0)\n";
const std::string store =
    "  %20: f32[256] elsewhere = memory.empty()\n"
    "  copy_(%20, %2)\n";
const std::string fetch =
    "  %21: f32[256] = memory.empty()\n"
    "  copy_(%21, %20)\n";
const std::string last_use_of_copy =
    "  %8: f32[256] = mul(%21, %7)\n"
    "output %8 = y\n";

const Program kept = program(begin + value + peak + last_use);
const Program offloaded = program(begin + value + store + peak + fetch + last_use_of_copy);

/// Copies cost nothing.
const graph::FitOptions free_copies{.offloading = graph::OffloadRates{1e30, 1e30}};

}  // namespace

TEST_CASE("other memory: a value that is stored and fetched has its bits in every executor") {
  const std::vector<double> expected = replayed(kept);
  const auto memory = std::make_shared<CountedMemory>();
  Replay replay(offloaded, memory);
  graph::PlannedExecutor planned(offloaded, false, memory);
  for (int step = 1; step <= 3; ++step) {
    CHECK(result_of(replay) == expected);
    CHECK(result_of(planned) == expected);
    CHECK(memory->allocated == 2 * step);
    CHECK(memory->put_aways == 4 * step);
    CHECK(memory->requested == 2 * step);
    CHECK(memory->held == 0);
  }
  CHECK(memory->most_held == 1024);
}

TEST_CASE("other memory: it takes nothing of the device's") {
  CHECK(graph::planned_bytes(offloaded) == graph::planned_bytes(kept) - 1024);
  CHECK(graph::bytes_elsewhere(offloaded) == 1024);
  CHECK(graph::bytes_elsewhere(kept) == 0);
  CHECK(graph::statistics_of(offloaded).peak < graph::statistics_of(kept).peak);
  graph::PlannedExecutor planned(offloaded, false, std::make_shared<CountedMemory>());
  result_of(planned);
  CHECK(planned.memory()->block_bytes + 1024 == graph::planned_bytes(offloaded));
}

TEST_CASE("other memory: the text says which tensors are there, and is read back") {
  const std::string text = offloaded.to_text();
  CHECK(text.find("  %20: f32[256] elsewhere = memory.empty()\n") != std::string::npos);
  CHECK(Program::parse(text).to_text() == text);
  const std::string booked =
      "  %1: f32[2] activation elsewhere = memory.empty()\n  %2: f32[2] activation = exp(%0)\n";
  const Program other =
      program("input %0: f32[2] = elsewhere\nsection step\n" + booked + "output %2 = y\n");
  CHECK(graph_test::count(other.to_text(), booked) == 1);
}

TEST_CASE("other memory: without it, and where it has no space, a step is an error") {
  graph::PlannedExecutor planned(offloaded);
  CHECK(error_of([&] { result_of(planned); }).find("there is no place; pass a MemoryPlace") !=
        std::string::npos);
  const auto full = std::make_shared<CountedMemory>();
  full->space = 100;
  Replay replay(offloaded, full);
  const std::string error = error_of([&] { result_of(replay); });
  CHECK(error.find("section 'step', instruction 2 (%20: f32[256] elsewhere = memory.empty())") !=
        std::string::npos);
  CHECK(error.find("no space for 1024 bytes") != std::string::npos);
}

TEST_CASE("the check after a pass knows a value that was stored and fetched") {
  CHECK_NOTHROW(graph::verify(offloaded));
  CHECK_NOTHROW(graph::verify_same(kept, offloaded));
  const auto differs = [](const std::string& body) {
    return error_of([&] {
             graph::verify_same(kept, program(begin + body));
           }).find("it is not the same after a pass") != std::string::npos;
  };
  const std::string other = "  %30: f32[256] elsewhere = memory.empty()\n  copy_(%30, %0)\n";
  const std::string fetch_other = "  %21: f32[256] = memory.empty()\n  copy_(%21, %30)\n";
  const std::string empty = "  %20: f32[256] elsewhere = memory.empty()\n";
  CHECK(differs(value + store + other + peak + fetch_other + last_use_of_copy));
  CHECK(differs(value + empty + peak + fetch + last_use_of_copy));
  // Before the value is complete.
  const std::string half = "  %2: f32[256] = memory.empty()\n  copy_(%2, %0)\n";
  const std::string rest = "  exp_(%2)\n";
  CHECK_NOTHROW(
      graph::verify_same(program(begin + half + rest + peak + last_use),
                         program(begin + half + rest + store + peak + fetch + last_use_of_copy)));
  CHECK(error_of([&] {
          graph::verify_same(
              program(begin + half + rest + peak + last_use),
              program(begin + half + store + rest + peak + fetch + last_use_of_copy));
        }).find("it is not the same") != std::string::npos);
  // A copy of another type or of a part is not the same value.
  const std::string cast = "  %20: bf16[256] elsewhere = memory.empty()\n  copy_(%20, %2)\n";
  CHECK(differs(value + cast + peak + fetch + last_use_of_copy));
}

TEST_CASE("only calls that do not communicate use what is elsewhere") {
  const auto wrong = [](const std::string& body) {
    return error_of([&] { graph::verify(program(begin + body)); });
  };
  CHECK(wrong("  %1: f32[256] elsewhere = exp(%0)\noutput %0 = y\n")
            .find("%1 is elsewhere, and no memory.empty()") != std::string::npos);
  CHECK(wrong("  %1: f32[256] elsewhere = memory.empty()\n  memory.release(%1)\noutput %0 = y\n")
            .find("%1 is elsewhere, where only calls use it") != std::string::npos);
  CHECK(wrong("  %1: f32[256] elsewhere = memory.empty()\n"
              "  all_gather_into(%1, %0; group=ranks 0, identity=1)\n  wait(%1)\noutput %0 = y\n")
            .find("%1 is elsewhere") != std::string::npos);
  CHECK(wrong("  %1: f32[256] elsewhere = memory.empty()\n  copy_(%1, %0)\noutput %1 = y\n")
            .find("an output of it is elsewhere") != std::string::npos);
}

TEST_CASE("a budget of memory: what cannot be computed again is kept elsewhere") {
  // The operand of %2 is gone and was overwritten.
  const std::string made =
      "  %1: f32[256] = memory.empty()\n  copy_(%1, %0)\n  %2: f32[256] = exp(%1)\n  neg_(%1)\n"
      "  %9: f32[] = sum(%1; dims=[], keepdim=false)\n  neg_(%0)\n";
  const Program whole = program(begin + made + peak + last_use);
  const std::vector<double> expected = replayed(whole);
  const std::int64_t budget = graph::planned_bytes(whole) - 512;
  Program refused = whole;
  CHECK(error_of([&] { graph::fit_memory(refused, budget); }).find("the step needs at least") !=
        std::string::npos);
  Program changed = whole;
  const graph::MemoryFit fit = graph::fit_memory(changed, budget, free_copies);
  CHECK(fit.bytes <= budget);
  CHECK(fit.bytes == graph::planned_bytes(changed));
  CHECK(fit.stored == 1);
  CHECK(fit.fetched == 1);
  CHECK(fit.calls == 0);
  CHECK(graph::bytes_elsewhere(changed) == 1024);
  graph::PlannedExecutor planned(changed, false, std::make_shared<CountedMemory>());
  CHECK(result_of(planned) == expected);
}

TEST_CASE("a budget of memory: what costs less is done") {
  const std::int64_t budget = graph::planned_bytes(kept) - 1024;
  const auto within = [&](double stored, double fetched) {
    Program changed = kept;
    return graph::fit_memory(
        changed, budget,
        {.computing = {.bytes = 1e3}, .offloading = graph::OffloadRates{stored, fetched}});
  };
  CHECK(within(1e6, 1e6).stored == 1);
  CHECK(within(1e6, 1e6).calls == 0);
  CHECK(within(1e2, 1e30).stored == 0);
  CHECK(within(1e30, 1e2).stored == 0);
  CHECK(within(1e30, 1e2).calls == 1);
}

TEST_CASE("a budget of memory: a value is stored once and fetched for what is made again") {
  // %2 is used at three places with a peak between each two of them.
  std::string body = value;
  int next = 100;
  std::string sum = "%0";
  for (int i = 0; i < 3; ++i) {
    const auto name = [&](int k) { return "%" + std::to_string(next + k); };
    body += "  " + name(0) + ": f32[256] = sin(" + sum + ")\n  " + name(1) + ": f32[256] = cos(" +
            sum + ")\n  " + name(2) + ": f32[256] = mul(" + name(0) + ", " + name(1) + ")\n  " +
            name(3) + ": f32[] = sum(" + name(2) + "; dims=[], keepdim=false)\n  " + name(4) +
            ": f32[256] = mul(%2, " + name(3) + ")\n";
    sum = name(4);
    next += 10;
  }
  const Program whole = program(begin + body + "output " + sum + " = y\n");
  const std::vector<double> expected = replayed(whole);
  Program changed = whole;
  const graph::MemoryFit fit =
      graph::fit_memory(changed, graph::planned_bytes(whole) - 1024,
                        {.computing = {.bytes = 1}, .offloading = graph::OffloadRates{1e9, 1e9}});
  CHECK(fit.stored >= 1);
  CHECK(fit.fetched > fit.stored);
  graph::PlannedExecutor planned(changed, false, std::make_shared<CountedMemory>());
  CHECK(result_of(planned) == expected);
}

TEST_CASE("a budget of memory: no choice of values to keep elsewhere needs less than the least") {
  // Every subset of the three values that are used later, each stored after it is made.
  const auto whole = [](unsigned stored) {
    std::string text = begin;
    std::string after;
    for (int v = 0; v < 3; ++v) {
      const std::string made = "%" + std::to_string(10 + v);
      const std::string there = "%" + std::to_string(20 + v);
      const std::string back = "%" + std::to_string(30 + v);
      const bool moves = (stored >> v & 1U) != 0;
      text += "  " + made + ": f32[256] = tanh(" + (v == 0 ? "%0" : "%" + std::to_string(9 + v)) +
              ")\n";
      if (moves && v > 0) {
        text += "";
      }
      after = (moves ? "  " + back + ": f32[256] = memory.empty()\n  copy_(" + back + ", " + there +
                           ")\n"
                     : std::string()) +
              "  %" + std::to_string(40 + v) + ": f32[256] = mul(" + (moves ? back : made) + ", " +
              (v == 2 ? "%0" : "%" + std::to_string(41 + v)) + ")\n" + after;
    }
    // The last use in forward of a value is by the next one; it is stored after that.
    for (int v = 0; v < 3; ++v) {
      if ((stored >> v & 1U) != 0) {
        const std::string there = "%" + std::to_string(20 + v);
        const std::string line = "  %" + std::to_string(v == 2 ? 12 : 11 + v) + ": ";
        const std::size_t at = text.find('\n', text.find(line)) + 1;
        text.insert(at, "  " + there + ": f32[256] elsewhere = memory.empty()\n  copy_(" + there +
                            ", %" + std::to_string(10 + v) + ")\n");
      }
    }
    return program(text + after + "output %40 = y\n");
  };
  const Program none = whole(0);
  const std::vector<double> expected = replayed(none);
  std::int64_t least = graph::planned_bytes(none);
  for (unsigned stored = 0; stored < 8; ++stored) {
    const Program one = whole(stored);
    CHECK_NOTHROW(graph::verify_same(none, one));
    least = std::min(least, graph::planned_bytes(one));
  }
  Program changed = none;
  const graph::MemoryFit fit = graph::fit_memory(changed, least, free_copies);
  CHECK(fit.bytes <= least);
  graph::PlannedExecutor planned(changed, false, std::make_shared<CountedMemory>());
  CHECK(result_of(planned) == expected);
}

TEST_CASE("rates of this machine are measured") {
  CountedMemory memory;
  const graph::FitOptions rates = graph::measured_rates(&memory);
  CHECK(rates.computing.flops > 1e7);
  CHECK(rates.computing.bytes > 1e6);
  REQUIRE(rates.offloading);
  CHECK(rates.offloading->stored > 1e6);
  CHECK(rates.offloading->fetched > 1e6);
  CHECK(memory.put_aways > 0);
  CHECK(memory.requested > 0);
  CHECK_FALSE(graph::measured_rates(nullptr).offloading);
}

TEST_CASE("a budget of memory: the least that a refusal names is met") {
  std::string body;
  std::string sum = "%0";
  for (int i = 0; i < 12; ++i) {
    const std::string size = std::to_string(64 + 37 * (i % 5));
    const std::string made = "%" + std::to_string(10 + i);
    body += "  " + made + ": f32[" + size + "] = memory.empty()\n  fill_(" + made +
            "; value=" + std::to_string(i) + ")\n  %" + std::to_string(40 + i) + ": f32[" + size +
            "] = exp(" + made + ")\n";
  }
  body += "  %99: f32[] = sum(%0; dims=[], keepdim=false)\n";
  std::string total = "%99";
  for (int i = 11; i >= 0; --i) {
    const std::string part = "%" + std::to_string(100 + 3 * i);
    const std::string next = "%" + std::to_string(101 + 3 * i);
    body += "  " + part + ": f32[] = sum(%" + std::to_string(40 + i) +
            "; dims=[], keepdim=false)\n  " + next + ": f32[] = add(" + total + ", " + part +
            "; alpha=1)\n";
    total = next;
  }
  const Program whole = program(begin + body + "output " + total + " = y\n");
  for (const bool offered : {false, true}) {
    graph::FitOptions options;
    if (offered) {
      options.offloading = graph::OffloadRates{1e12, 1e12};
    }
    Program refused = whole;
    const std::string error = error_of([&] { graph::fit_memory(refused, 100, options); });
    const std::string named = "at least ";
    REQUIRE(error.find(named) != std::string::npos);
    // The text rounds to a tenth of a KiB.
    const double kib = std::stod(error.substr(error.find(named) + named.size()));
    Program changed = whole;
    CHECK_NOTHROW(
        graph::fit_memory(changed, static_cast<std::int64_t>((kib + 0.06) * 1024), options));
  }
}
