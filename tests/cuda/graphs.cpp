// Graphs of CUDA: what a stream would have queued, recorded once, and planned steps that use them.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "control.hpp"

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.execute;

#include "../graph/program_text.hpp"
#include "device.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// A step with a product, an input that is given anew, a number that changes, a read by the host,
/// and a parameter and a buffer that it writes.
const char* const step_text =
    "number scale\n"
    "input rows 0 %0: f32[4, 8] = rows\n"
    "input parameter %1: f32[8, 8] = weight\n"
    "input buffer %2: f32[4, 8] = kept\n"
    "section gradients\n"
    "  %3: f32[4, 8] = tanh(%0)\n"
    "  %4: f32[4, 8] = matmul(%3, %1)\n"
    "  %5: f32[4, 8] = exp(%4)\n"
    "  %6: f32[4, 8] = memory.full(0.5)\n"
    "  %7: f32[4, 8] = add(%5, %6; alpha=2)\n"
    "  %8: f32[4, 8] = mul_scalar(%7; value=1) {value=$scale}\n"
    "  %9: f32[4, 8] = sin(%8)\n"
    "  add_(%2, %9; alpha=1)\n"
    "  %10: f32[8] = sum(%2; dims=[0], keepdim=false)\n"
    "section update\n"
    "  mul_scalar_(%1; value=0.5)\n"
    "  add_scalar_(%1; value=0.25)\n"
    "output %10 = sums\n";

Tensor numbers(const Dims& shape, double seed) {
  return ops::reshape(ops::sin(ops::add_scalar(counted(shape.product()), seed)), shape);
}

struct Steps {
  std::vector<double> values;
  std::optional<graph::PlannedGraphs> graphs;
  std::uint64_t launched = 0;
};

/// Five steps; before step `moved`, the weight is in other memory.
Steps steps_of(bool device_graphs, int moved = -1, Device place = cuda()) {
  next_order();
  Steps all;
  graph::PlannedExecutor planned(graph_test::program(step_text), false, nullptr, device_graphs);
  Tensor weight = ops::to_device(numbers({8, 8}, 1), place);
  const Tensor kept = ops::to_device(numbers({4, 8}, 2), cuda());
  const std::uint64_t before = emulator_graph_launches();
  for (int step = 0; step < 5; ++step) {
    if (step == moved) {
      weight = ops::add_scalar(weight, 0);
    }
    planned.begin({{"rows", ops::to_device(numbers({4, 8}, step), cuda())},
                   {"weight", weight},
                   {"kept", kept}});
    planned.run(SectionKind::gradients, {.numbers = {{"scale", 0.5 + step}}});
    for (const double x : to_doubles(planned.output("sums"))) all.values.push_back(x);
    const auto version = weight.storage().version();
    planned.run(SectionKind::update, {});
    CHECK(weight.storage().version() == version + 2);
    planned.end();
  }
  for (const double x : to_doubles(weight)) all.values.push_back(x);
  all.graphs = planned.graphs();
  all.launched = emulator_graph_launches() - before;
  return all;
}

}  // namespace

TEST_CASE("a graph is what a stream would have queued, with the memory that it had") {
  for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) {
    emulator_set_seed(seed);
    const Stream stream = current_stream(cuda());
    const Tensor x = ops::to_device(counted(100), cuda());
    const Tensor y = full({100}, 0, DType::f32, cuda());
    const auto work = [&] { ops::add_(y, x); };
    work();  // finds the kernel
    const DeviceGraph graph = DeviceGraph::record(stream, work);
    CHECK(to_doubles(y)[99] == 99);  // nothing has run
    graph.launch(stream);
    ops::mul_scalar_(x, 2);
    graph.launch(stream);
    CHECK(to_doubles(y)[99] == 4 * 99);
  }
}

TEST_CASE("what cannot be recorded is an error, and the stream works afterwards") {
  const Stream stream = current_stream(cuda());
  const Tensor x = ops::to_device(counted(4), cuda());
  stream.launch([] {});  // begins the thread of the stream's functions
  stream.synchronize();
  CHECK_THROWS_WITH(DeviceGraph::record(stream, [&] { to_doubles(x); }),
                    Catch::Contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"));
  CHECK_THROWS_WITH(DeviceGraph::record(stream, [&] { stream.launch([] {}); }),
                    Catch::Contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"));
  CHECK_THROWS_WITH(DeviceGraph::record(stream, [] { fail("no luck"); }),
                    Catch::Contains("no luck"));
  CHECK(to_doubles(ops::mul_scalar(x, 2))[3] == 6);
  bool ran = false;
  stream.launch([&] { ran = true; });
  stream.synchronize();
  CHECK(ran);
  CHECK_THROWS_WITH(DeviceGraph::record(Stream(), [] {}), Catch::Contains("it has no graphs"));
}

TEST_CASE("a graph that nobody holds any more runs to its end, and goes away later") {
  emulator_set_seed(0);
  emulator_set_idle(0);
  const Stream stream = current_stream(cuda());
  const Tensor x = ops::to_device(counted(100), cuda());
  const auto work = [&] { ops::mul_scalar_(x, 2); };
  work();
  for (int i = 0; i < 3; ++i) DeviceGraph::record(stream, work).launch(stream);
  emulator_set_idle(2000);
  CHECK(to_doubles(x)[99] == 16 * 99);
  DeviceGraph::record(stream, work);
  CHECK(to_doubles(x)[99] == 16 * 99);
}

TEST_CASE("planned steps as graphs have the bits of steps that are queued call by call") {
  const Steps plain = steps_of(false);
  CHECK((!plain.graphs && plain.launched == 0));
  const Steps steps = steps_of(true);
  CHECK(steps.values == plain.values);
  REQUIRE(steps.graphs.has_value());
  // Of rows: tanh. Of the number: mul_scalar. What is between and behind them is two graphs, and
  // the update is one.
  CHECK(steps.graphs->graphs == 3);
  CHECK(steps.graphs->calls == 4 + 3 + 2);
  CHECK(steps.graphs->alone ==
        std::map<std::string, int>{{"a number changes", 1}, {"memory is new in each step", 1}});
  CHECK(steps.launched == 4 * 3);  // not in the first step
}

TEST_CASE("a graph is recorded anew where an input is in other memory, which then is in none") {
  for (const int moved : {1, 2, 4}) {
    const Steps steps = steps_of(true, moved);
    CHECK(steps.values == steps_of(false, moved).values);
    REQUIRE(steps.graphs.has_value());
    CHECK(steps.graphs->alone.at("memory is new in each step") == 1 + 3);
  }
}

TEST_CASE(
    "planned steps with a parameter in the host's memory have its copies between the graphs") {
  const Steps there = steps_of(false);
  const std::int64_t before = memory_statistics(cuda()).total;
  CHECK(steps_of(false, -1, cpu).values == there.values);
  const Steps steps = steps_of(true, -1, cpu);
  CHECK(steps.values == there.values);
  CHECK(memory_statistics(cuda()).total == before);
  REQUIRE(steps.graphs.has_value());
  CHECK(steps.graphs->graphs == 2);  // the update is the host's
  CHECK(steps.graphs->calls == 3 + 3);
  CHECK(steps.graphs->alone == std::map<std::string, int>{{"a number changes", 1},
                                                          {"memory is new in each step", 1},
                                                          {"the host's memory is used", 3}});
}

TEST_CASE("graphs of a device that has none are refused") {
  graph::PlannedExecutor planned(graph_test::program(step_text), false, nullptr, true);
  CHECK_THROWS_WITH(planned.begin({{"rows", numbers({4, 8}, 0)},
                                   {"weight", numbers({8, 8}, 1)},
                                   {"kept", numbers({4, 8}, 2)}}),
                    Catch::Contains("the device 'cpu' has none"));
}
