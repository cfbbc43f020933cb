// The planned executor against the interpreter: the same bits, in one block of memory that is not
// larger than what is needed at once.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.plugin;
import tessera.device;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.passes;
import tessera.capture;
import tessera.graph;

#include "devices.hpp"
#include "program_text.hpp"

using namespace tessera;
using graph::PlannedExecutor;
using testing::check;

namespace {

Tensor random(const Dims& shape) {
  Tensor x = empty(shape, DType::f32);
  ops::normal_(x, 0, 1, random_stream("data"));
  return x;
}

Program program_of_step(const Tensor& x, const std::function<Tensor()>& body) {
  const auto record = [&] {
    Recorder recorder;
    recorder.input("x", x);
    recorder.section(SectionKind::step, [&] { recorder.output("y", body()); });
    return recorder.finish({});
  };
  const Recording first = record();
  return program_of(first, record());
}

std::vector<double> run(Executor& executor, const Tensor& x) {
  executor.begin({{"x", x}});
  executor.run(SectionKind::step, {});
  std::vector<double> y = to_doubles(executor.output("y"));
  executor.end();
  return y;
}

/// Three steps of both executors with other inputs each.
void same_bits(const Program& program, PlannedExecutor& planned, const Dims& shape) {
  Replay replay(program);
  for (int step = 0; step < 3; ++step) {
    const Tensor x = random(shape);
    CHECK(run(planned, x) == run(replay, x));
  }
}

}  // namespace

TEST_CASE("results take turns in one block, and in the place of operands that end") {
  const Tensor x = random({1024});
  const Program program = program_of_step(x, [&] {
    Tensor y = ops::exp(x);
    for (int i = 0; i < 10; ++i) {
      y = ops::mul(ops::neg(y), x);  // y in turn in two places, or in one: neg in place
    }
    return ops::add(y, x);
  });
  PlannedExecutor planned(program);
  CHECK(!planned.memory().has_value());
  same_bits(program, planned, {1024});
  REQUIRE(planned.memory().has_value());
  CHECK(planned.memory()->block_bytes == 4096);
  CHECK(planned.memory()->least_bytes == 4096);
  CHECK(planned.memory()->allocated == 0);
}

TEST_CASE("steps that a mode sees have no block beside the memory of their calls") {
  const Tensor x = random({1 << 16});
  const Program program = program_of_step(x, [&] { return ops::neg(ops::exp(x)); });
  PlannedExecutor planned(program);
  const std::vector<double> expected = run(planned, x);
  CHECK(planned.memory().has_value());
  {
    Mode trace;
    const ModeScope scope(ModeLevel::below_distribution, trace);
    CHECK(run(planned, x) == expected);
    CHECK(!planned.memory().has_value());
  }
  CHECK(run(planned, x) == expected);
  CHECK(planned.memory().has_value());
}

TEST_CASE("an operand that is used again is not overwritten, nor one that is used twice") {
  const Tensor x = random({64});
  const Program program = program_of_step(x, [&] {
    const Tensor a = ops::exp(x);
    const Tensor b = ops::neg(a);
    const Tensor c = ops::mul(a, a);
    return ops::add(ops::mul(b, c), a);
  });
  PlannedExecutor planned(program);
  same_bits(program, planned, {64});
  // An operand that ends, beside another view of it.
  const Tensor square = random({64, 64});
  const Program of_views = program_of_step(square, [&] {
    const Tensor a = ops::exp(square);
    return ops::neg(ops::mul(a, ops::transpose(a, 0, 1)));
  });
  PlannedExecutor planned_views(of_views);
  same_bits(of_views, planned_views, {64, 64});
}

TEST_CASE("views and writes through them reach the memory that they are of") {
  const Tensor x = random({6, 4});
  const Program program = program_of_step(x, [&] {
    const Tensor a = ops::exp(x);
    const Tensor turned = ops::transpose(a, 0, 1);
    ops::add_(ops::select(turned, 0, 2), full({6}, 3));
    const Tensor copy = ops::contiguous(turned);  // a view that is a copy here
    const Tensor whole = ops::reshape(copy, {24});
    const Tensor rows = ops::narrow(x, 0, 1, 3);  // of an input
    const Tensor constants = from_values<float>({1, 2, 3, 4}, {4});
    ops::mul_(constants, full({4}, 2));  // a constant that is written is fresh in each step
    return ops::add(ops::sum(whole), ops::add(ops::sum(rows), ops::sum(constants)));
  });
  PlannedExecutor planned(program);
  same_bits(program, planned, {6, 4});
}

TEST_CASE("views that are copies have their place in the block") {
  const Tensor x = random({6, 4});
  const Program program = program_of_step(x, [&] {
    const Tensor turned = ops::transpose(x, 0, 1);
    const Tensor inner = ops::narrow(x, 1, 1, 2);
    return ops::add(
        ops::mul(ops::reshape(turned, {3, 8}), ops::reshape(ops::contiguous(turned), {3, 8})),
        ops::sum(ops::contiguous(inner)));
  });
  PlannedExecutor planned(program);
  same_bits(program, planned, {6, 4});
  CHECK(planned.memory()->allocated == 0);
}

TEST_CASE("what is written into an input stays, and its version moves") {
  const Tensor x = zeros({3});
  const Program program = program_of_step(x, [&] {
    ops::add_(x, full({3}, 1));
    return ops::sum(x);
  });
  const Tensor own = zeros({3});
  PlannedExecutor planned(program);
  const std::uint64_t version = own.storage().version();
  CHECK(run(planned, own) == std::vector<double>{3});
  CHECK(run(planned, own) == std::vector<double>{6});
  CHECK(own.storage().version() == version + 2);
  CHECK(to_doubles(own) == std::vector<double>{2, 2, 2});
}

TEST_CASE("memory that is released and restored, and random numbers, are as in the interpreter") {
  random_stream("noise");
  const Tensor x = random({32});
  const Tensor scratch = zeros({32});
  scratch.storage().release_memory();
  const auto record = [&] {
    StepVariables variables;
    variables.streams = random_state();
    Recorder recorder;
    recorder.input("x", x);
    recorder.section(SectionKind::step, [&] {
      scratch.storage().restore_memory();
      ops::copy_(scratch, ops::dropout(x, 0.5, random_stream("noise")));
      const Tensor y = ops::neg(scratch);
      scratch.storage().release_memory();
      recorder.output("y", y);
    });
    return recorder.finish(variables);
  };
  const Recording first = record();
  const Program program = program_of(first, record());
  const auto steps = [&](Executor& executor) {
    set_seed(5);
    random_stream("noise");
    std::vector<std::vector<double>> all;
    for (int i = 0; i < 3; ++i) {
      StepVariables variables;
      variables.streams = random_state();
      executor.begin({{"x", x}});
      executor.run(SectionKind::step, variables);
      all.push_back(to_doubles(executor.output("y")));
      executor.end();
    }
    return all;
  };
  Replay replay(program);
  PlannedExecutor planned(program);
  const auto expected = steps(replay);
  CHECK(expected[0] != expected[1]);
  CHECK(steps(planned) == expected);
}

TEST_CASE("more threads than when the block was planned have workspaces of their own") {
  const Tensor x = random({64, 300});
  const Program program = program_of_step(x, [&] { return ops::cumsum(ops::softmax(x, 0), 0); });
  PlannedExecutor planned(program);
  Replay replay(program);
  const std::vector<double> expected = run(replay, x);
  ops::set_threads(1);
  CHECK(run(planned, x) == expected);
  ops::set_threads(4);
  CHECK(run(planned, x) == expected);
  ops::set_threads(1);
}

TEST_CASE("a step that failed leaves nothing behind, and errors name the instruction") {
  const Tensor x = full({2}, 1);
  const Program program = program_of_step(x, [&] {
    const Tensor y = ops::exp(x);
    ops::sum(x).item();
    return y;
  });
  PlannedExecutor planned(program);
  planned.begin({{"x", full({2}, 3)}});
  CHECK_THROWS_WITH(planned.run(SectionKind::step, {}),
                    Catch::Contains("replay: section 'step', instruction 3 (host.check(%2; 2)):"));
  planned.abandon();
  CHECK_THROWS_WITH(planned.begin({{"x", full({3}, 1)}}),
                    Catch::Contains("input 'x' has another shape or type"));
  CHECK_THROWS_WITH(planned.begin({}), Catch::Contains("input 'x' is missing"));
  CHECK(run(planned, x) == to_doubles(ops::exp(x)));
}

TEST_CASE("what ranks reduce is in the block, and what is issued is kept until its end") {
  const auto on_rank = [](collective::World& world) {
    const ops::Ranks group = world.everyone();
    const Tensor x = full({1 << 16}, 1 + world.rank());
    const Program program = program_of_step(x, [&] {
      const Tensor source = ops::exp(x);
      ops::PendingTensor gathered = ops::all_gather_async(source, 0, 2 << 16, group);
      const Tensor meanwhile = ops::neg(x);  // not in the place of `source`
      const Tensor sum = ops::all_reduce(ops::mul(meanwhile, x), ReduceOp::sum, group);
      return ops::add(ops::sum(sum), ops::sum(gathered.wait()));
    });
    PlannedExecutor planned(program);
    Replay replay(program);
    const std::vector<double> expected = run(replay, x);
    check(run(planned, x) == expected && run(planned, x) == expected, "the same bits");
    const graph::PlannedMemory memory = *planned.memory();
    check(memory.allocated == 0, "all is in the block");
    // source, gathered (2), the product in the place of meanwhile, its sum, and scalars
    check(memory.block_bytes >= (5 << 18) && memory.block_bytes < (5 << 18) + 4096,
          std::to_string(memory.block_bytes));
    // Where the others can read it, so nothing is copied to reduce it.
    PlannedExecutor of_sum(
        program_of_step(x, [&] { return ops::all_reduce(ops::exp(x), ReduceOp::sum, group); }));
    of_sum.begin({{"x", x}});
    of_sum.run(SectionKind::step, {});
    check(world.peers_reach(of_sum.output("y").raw_data()), "the others reach what is reduced");
    of_sum.end();
  };
  REQUIRE_NOTHROW(collective::run_threads(2, on_rank));
}

TEST_CASE("what other ranks may read later is not in the block; alone, everything is") {
  const auto on_rank = [](collective::World& world) {
    const std::string inputs =
        "tessera program 2\nrank " + std::to_string(world.rank()) +
        "\ninput %0: f32[4096] = x\nsection step\n  %1: f32[4096] = exp(%0)\n";
    const auto allocated = [&](const std::string& ranks, const std::string& body, int size) {
      const std::string shape = "f32[" + std::to_string(size) + "]";
      PlannedExecutor planned(Program::parse(
          inputs + "  %2: " + shape + " = memory.empty()\n  " + body + "group=ranks " + ranks +
          ", identity=1)\n  wait(%2)\n  %3: f32[] = sum(%2; dims=[], keepdim=false)\noutput %3 "
          "= y\nend\n"));
      run(planned, full({4096}, 1));
      return planned.memory()->allocated;
    };
    const std::string own = std::to_string(world.rank());
    check(allocated("0 1", "all_gather_into(%2, %1; ", 8192) == 1, "a gather's source");
    check(allocated("0 1", "reduce_scatter_into(%2, %1; op=sum, ", 2048) == 1, "a sum's source");
    check(allocated(own, "all_gather_into(%2, %1; ", 4096) == 0, "a gather alone");
  };
  REQUIRE_NOTHROW(collective::run_threads(2, on_rank));
}

TEST_CASE("what other ranks may read keeps its place until they have read it") {
  const auto on_rank = [](collective::World& world) {
    const std::string head = "tessera program 2\nrank " + std::to_string(world.rank()) +
                             "\ninput %0: f32[4096] = x\nsection step\n"
                             "  %1: f32[4096] = exp(%0)\n  %2: f32[8192] = memory.empty()\n"
                             "  all_gather_into(%2, %1; group=ranks 0 1, identity=1)\n"
                             "  wait(%2)\n  %3: f32[] = sum(%2; dims=[], keepdim=false)\n";
    const std::string large =
        "  %4: f32[12288] = memory.full(2)\n  %5: f32[] = sum(%4; dims=[], keepdim=false)\n";
    const std::string next =
        "  %6: f32[8192] = memory.empty()\n"
        "  all_gather_into(%6, %0; group=ranks 0 1, identity=2)\n  wait(%6)\n"
        "  %7: f32[] = sum(%6; dims=[], keepdim=false)\n";
    const std::string readers = "  wait_readers(%1; group=ranks 0 1)\n";
    const std::string end = "output %3 = y\nend\n";
    const auto memory_of = [&](const std::string& body) {
      PlannedExecutor planned(Program::parse(head + body + end));
      run(planned, full({4096}, 1));
      return *planned.memory();
    };
    constexpr std::int64_t most = 64 << 10;  // the large tensor and the source
    const graph::PlannedMemory before = memory_of(large + next);
    check(before.allocated == 0 && before.block_bytes >= most, "until the next call is complete");
    const graph::PlannedMemory after = memory_of(next + large);
    check(after.allocated == 0 && after.block_bytes < most, "and not longer");
    const graph::PlannedMemory waited = memory_of(readers + large);
    check(waited.allocated == 0 && waited.block_bytes < most, "or until the readers are done");
    check(memory_of(large).allocated == 1, "after the program");
  };
  REQUIRE_NOTHROW(collective::run_threads(2, on_rank));
}

TEST_CASE("while a mode is installed it sees the calls, and the bits are the same") {
  struct Counter final : Mode {
    int calls = 0;
    Tensors call(const Call& call, NextCall& next) override {
      ++calls;
      return next(call);
    }
  };
  const Tensor x = random({8});
  const Program program = program_of_step(x, [&] { return ops::neg(ops::exp(x)); });
  PlannedExecutor planned(program);
  const std::vector<double> expected = run(planned, x);
  Counter counter;
  {
    const ModeScope scope(ModeLevel::below_distribution, counter);
    CHECK(run(planned, x) == expected);
  }
  CHECK(counter.calls == 2);
  CHECK(run(planned, x) == expected);
}

TEST_CASE("executors have names") {
  CHECK_THROWS_WITH(
      graph::check({.executor = "fast"}),
      "there is no executor 'fast' (expected one of compiled, interpreter and planned)");
}

TEST_CASE("planned steps on a device have one block in its memory") {
  const Tensor x = random({1024});
  const Program program = program_of_step(x, [&] {
    Tensor y = ops::add(x, full({1024}, 0.5));
    for (int i = 0; i < 10; ++i) {
      y = ops::softmax(ops::mul(ops::neg(y), x), 0);
    }
    return ops::add(y, from_values<float>(std::vector<float>(1024, 2.0F), {1024}));
  });
  PlannedExecutor on_cpu(program);
  for (int number = 0; number < 3; ++number) {
    const Device device = testing::adversary(number);
    PlannedExecutor planned(program);
    for (int step = 0; step < 3; ++step) {
      const Tensor input = random({1024});
      CHECK(run(planned, ops::to_device(input, device)) == run(on_cpu, input));
    }
    REQUIRE(planned.memory().has_value());
    CHECK(planned.memory()->block_bytes == on_cpu.memory()->block_bytes);
    CHECK(run(planned, x) == run(on_cpu, x));  // another device: planned again
    // Nothing is allocated in a step but the result that an output is.
    const Tensor input = ops::to_device(x, device);
    run(planned, input);
    const std::int64_t before = memory_statistics(device).total;
    planned.begin({{"x", input}});
    planned.run(SectionKind::step, {});
    CHECK(memory_statistics(device).total == before);
    planned.end();
  }
}

TEST_CASE("steps of a device compute with what is kept in the host's memory") {
  // A parameter w, its gradient g and a state m are there; x and v are the device's.
  const Program program = graph_test::program(
      "input gradient %0: f32[2, 3] gradient = g\n"
      "input optimizer_state %1: f32[2, 3] optimizer = m\n"
      "input parameter %2: f32[2, 3] parameter = w\n"
      "input parameter %3: f32[2, 3] parameter = v\n"
      "input %4: f32[2, 3] activation = x\n"
      "section gradients\n"
      "  %5: f32[2, 3] activation = mul(%2, %4)\n"
      "  copy_(%0, %5)\n"
      "  %6: f64[] activation = squared_norm(%0)\n"
      "section update\n"
      "  %7: f32[2, 3] activation = clone(%2)\n"
      "  sgd_(%2, %0, -; lr=0.5, momentum=0, dampening=0, weight_decay=0, grad_scale=1, step=1, "
      "nesterov=false, maximize=false)\n"
      "  sgd_(%3, %5, %1; lr=0.5, momentum=0.5, dampening=0, weight_decay=0, grad_scale=1, step=2, "
      "nesterov=false, maximize=false)\n"
      "  %8: f32[2, 3] activation = clone(%2)\n"
      "output %6 = norm\n"
      "output %7 = before\n"
      "output %8 = after\n");
  const Device device = testing::adversary();
  const auto steps_of = [&](Device of_device, const std::string& executor) {
    const std::unique_ptr<Executor> made =
        graph::make_executor(Program(program), {.executor = executor}, nullptr);
    const auto values = [](int first) {
      const Tensor x = empty({2, 3});
      for (std::int64_t i = 0; i < 6; ++i) {
        x.data<float>()[i] = static_cast<float>((i * 5 + first) % 7 - 3);
      }
      return x;
    };
    std::map<std::string, Tensor> given = {{"g", values(0)},
                                           {"m", ops::to_device(values(1), of_device)},
                                           {"w", values(2)},
                                           {"v", ops::to_device(values(3), of_device)},
                                           {"x", ops::to_device(values(4), of_device)}};
    std::vector<std::vector<double>> found;
    for (int step = 0; step < 3; ++step) {
      if (step == 1) {
        given["m"] = ops::to_device(given["m"], cpu);  // from now on it is kept there, too
      }
      made->begin(given);
      made->run(SectionKind::gradients, {});
      CHECK(made->output("norm").device() == cpu);  // of what is kept there
      made->run(SectionKind::update, {});
      for (const char* const name : {"before", "after"}) {
        CHECK(made->output(name).device() == of_device);
        found.push_back(to_doubles(made->output(name)));
      }
      found.push_back(to_doubles(made->output("norm")));
      made->end();
      for (const auto& [name, x] : given) {
        found.push_back(to_doubles(x));
      }
    }
    if (const auto* planned = dynamic_cast<const PlannedExecutor*>(made.get())) {
      REQUIRE(planned->memory().has_value());                            // it is no replay
      CHECK(planned->memory()->in_block == (of_device == cpu ? 4 : 3));  // the norm is the host's
    }
    return found;
  };
  for (const std::string executor : {"planned", "interpreter"}) {
    CHECK(steps_of(device, executor) == steps_of(cpu, executor));
  }
}

TEST_CASE("planned steps on a device have the workspaces of its kernels") {
  const Op& op = register_op({
      .schema =
          "own_workspace_of_step(x)",  // the adversary's kernel of such a name takes 4096 bytes
      .infer = [](const Call&, ResultShapes& out) { out.push_back({{}, DType::f32}); },
      .cpu =
          [](const Call& call, std::span<Tensor> out) {
            out[0].data<float>()[0] = static_cast<float>(call.workspace.size());
          },
      .workspace = [](const Call&, std::span<const Tensor>) { return std::size_t{64}; },
  });
  const Tensor x = random({16});
  const Program program = program_of_step(x, [&] { return ops::neg(call_one(op, {x})); });
  const Device device = testing::adversary();
  PlannedExecutor on_cpu(program);
  PlannedExecutor there(program);
  CHECK(run(on_cpu, x) == std::vector<double>{-64});
  CHECK(run(there, ops::to_device(x, device)) == std::vector<double>{-4096});
  CHECK(there.memory()->block_bytes >= on_cpu.memory()->block_bytes + 4096 - 64);
  const std::int64_t bytes = graph::planned_bytes(program);
  const StepScope kernels([&](StepContext& step) { step.planned_device = device.type; });
  CHECK(graph::planned_bytes(program) >= bytes + 4096 - 64);
}

TEST_CASE("where a device lacks a kernel, steps are the interpreter's") {
  const Op& op = register_op(
      {.schema = "no_kernel_twice(x)",  // the adversary has none for such names
       .infer = [](const Call& call,
                   ResultShapes& out) { out.push_back({call.in[0].shape(), DType::f32}); },
       .cpu =
           [](const Call& call, std::span<Tensor> out) {
             for (std::int64_t i = 0; i < out[0].numel(); ++i) {
               out[0].data<float>()[i] = 2 * call.in[0].data<float>()[i];
             }
           }});
  const Tensor x = random({64});
  const Program program = program_of_step(x, [&] { return ops::neg(call_one(op, {x})); });
  PlannedExecutor planned(program);
  const Tensor on_device = ops::to_device(x, testing::adversary());
  CHECK(testing::error_of([&] {
          run(planned, on_device);
        }).find("no_kernel_twice: the operator has no kernel on adversary:0") != std::string::npos);
  planned.abandon();
  const HostFallback fallback;
  CHECK(run(planned, on_device) == run(planned, x));
  CHECK(fallback.entries().size() == 1);
}
