// Recording and replay of calls on plain tensors: what a program consists of, and what is refused.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.device;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.capture;

using namespace tessera;

namespace {

Tensor values(std::initializer_list<float> list, const Dims& shape) {
  return from_values(std::span<const float>(list.begin(), list.size()), shape);
}

/// A recording of `body` with one input, and what it returns as the output.
Recording recorded(const Tensor& x, const StepVariables& variables,
                   const std::function<Tensor(Recorder&)>& body) {
  Recorder recorder;
  recorder.input("x", x);
  recorder.section(SectionKind::step, [&] { recorder.output("y", body(recorder)); });
  return recorder.finish(variables);
}

Recording recorded(const Tensor& x, const std::function<Tensor()>& body) {
  return recorded(x, {}, [&](Recorder&) { return body(); });
}

/// The output of a program for another input.
std::vector<double> replayed(const Program& program, const Tensor& x,
                             const StepVariables& variables = {}) {
  Replay replay(Program::parse(program.to_text()));
  replay.begin({{"x", x}});
  replay.run(SectionKind::step, variables);
  std::vector<double> y = to_doubles(replay.output("y"));
  replay.end();
  return y;
}

}  // namespace

TEST_CASE("a program is the calls below distribution, and its text has all of them") {
  const auto body = [](const Tensor& x) {
    const Tensor wide = ops::mul(ops::exp(x), full({2, 2}, 3));
    const Tensor row = ops::select(wide, 0, 1);
    ops::add_(row, from_values<float>({1, 2}, {2}));  // a write through a view
    return ops::sum(wide, {0});
  };
  const Tensor x = values({0, 1, 2, 3}, {2, 2});
  const auto record = [&] { return recorded(x, [&] { return body(x); }); };
  const Program program = program_of(record(), record());
  CHECK(program.to_text() ==
        "tessera program 2\n"
        "rank 0\n"
        "input %0: f32[2, 2] = x\n"
        "section step\n"
        "  %1: f32[2, 2] = exp(%0)\n"
        "  %2: f32[2, 2] = memory.full(3)\n"
        "  %3: f32[2, 2] = mul(%1, %2)\n"
        "  %4: f32[2] = select(%3; dim=0, index=1)\n"
        "  %5: f32[2] = memory.values(1, 2)\n"
        "  add_(%4, %5; alpha=1)\n"
        "  %6: f32[2] = sum(%3; dims=[0], keepdim=false)\n"
        "output %6 = y\n"
        "end\n");
  const Tensor other = values({1, -1, 0.5F, 2}, {2, 2});
  CHECK(replayed(program, other) == to_doubles(body(other)));
}

TEST_CASE("aliases are other views of one memory, and released memory comes back") {
  const Tensor x = values({1, 2, 3, 4, 5, 6}, {6});
  const Tensor scratch = zeros({6});
  scratch.storage().release_memory();
  const auto record = [&] {
    return recorded(x, [&] {
      scratch.storage().restore_memory();
      ops::copy_(scratch, x);
      const Tensor odd = alias(scratch, {3}, {2}, 1);
      ops::mul_(odd, full({3}, 10));
      const Tensor sum = ops::add(scratch, x);
      scratch.storage().release_memory();
      return sum;
    });
  };
  const Program program = program_of(record(), record());
  CHECK(program.to_text().find("  %1: f32[6] = memory.empty()\n"
                               "  copy_(%1, %0)\n") != std::string::npos);
  CHECK(program.to_text().find("memory.alias(%1; strides=[2], offset=1)") != std::string::npos);
  CHECK(program.to_text().find("memory.release(%1)") != std::string::npos);
  CHECK(replayed(program, values({1, 1, 1, 2, 2, 2}, {6})) ==
        std::vector<double>{2, 11, 2, 22, 4, 22});
}

TEST_CASE("memory may have views of several types") {
  const Tensor x = values({1.5F, -2}, {2});
  const Tensor memory = empty({24}, DType::u8);
  memory.storage().release_memory();
  const auto view = [&](std::int64_t place, DType dtype) {
    return from_storage(memory.impl()->storage, {2}, {1},
                        place / static_cast<std::int64_t>(size_of(dtype)), dtype);
  };
  const auto record = [&] {
    return recorded(x, [&] {
      memory.storage().restore_memory();
      ops::copy_(view(16, DType::f32), x);
      ops::copy_(view(0, DType::f64), ops::cast(x, DType::f64));
      const Tensor sum = ops::add(ops::cast(view(0, DType::f64), DType::f32), view(16, DType::f32));
      memory.storage().release_memory();
      return sum;
    });
  };
  const Program program = program_of(record(), record());
  CHECK(program.to_text().find("  %1: f32[6] = memory.empty()\n"
                               "  %2: f32[2] = memory.alias(%1; strides=[1], offset=4)\n") !=
        std::string::npos);
  CHECK(program.to_text().find(": f64[2] = memory.alias(%1; strides=[1], offset=0)") !=
        std::string::npos);
  CHECK(replayed(program, values({4, 0.25F}, {2})) == std::vector<double>{8, 0.5});
}

TEST_CASE("instructions say their phase and module, and tensors what their memory is booked on") {
  const Tensor x = values({1, 2}, {2});
  const auto record = [&] {
    return recorded(x, [&] {
      Tensor y;
      run_phase("forward", [&] {
        const ModuleScope module(interned_name("blocks.0"));
        const MemoryScope scope(MemoryCategory::activation);
        y = ops::exp(x);
      });
      run_phase("backward", [&] { y = ops::neg(y); });
      return ops::add(y, x);
    });
  };
  const Program program = program_of(record(), record());
  const std::string text = program.to_text();
  CHECK(text.find("  %1: f32[2] activation = exp(%0) @ forward in blocks.0\n"
                  "  %2: f32[2] = neg(%1) @ backward\n"
                  "  %3: f32[2] = add(%2, %0; alpha=1)\n") != std::string::npos);
  const Program parsed = Program::parse(text);
  CHECK(parsed.to_text() == text);
  const Instruction& first = parsed.sections[0].instructions[0];
  CHECK(parsed.scopes[first.scope].module == "blocks.0");
  CHECK(parsed.tensors[TensorIndex(1)].category == MemoryCategory::activation);
}

TEST_CASE("instructions say the part of the step that was named, and executors tell it") {
  const Tensor x = values({1, 2}, {2});
  const auto record = [&] {
    return recorded(x, [&] {
      Tensor y;
      run_phase("forward of stage 1, micro-batch 0", [&] {
        run_phase("forward", [&] { y = ops::exp(x); });
        y = ops::neg(y);
      });
      run_phase("a part of its own", [&] { y = ops::exp(y); });
      return ops::add(y, x);
    });
  };
  const Program program = program_of(record(), record());
  const std::string text = program.to_text();
  CHECK(text.find("  %1: f32[2] = exp(%0) @ forward during forward of stage 1, micro-batch 0\n"
                  "  %2: f32[2] = neg(%1) @ - during forward of stage 1, micro-batch 0\n"
                  "  %3: f32[2] = exp(%2) @ - during a part of its own\n"
                  "  %4: f32[2] = add(%3, %0; alpha=1)\n") != std::string::npos);
  CHECK(Program::parse(text).to_text() == text);
  std::vector<std::unique_ptr<Executor>> executors;
  executors.push_back(std::make_unique<Replay>(program));
  executors.push_back(std::make_unique<graph::PlannedExecutor>(program));
  for (const std::unique_ptr<Executor>& executor : executors) {
    std::vector<std::string> parts;
    executor->watch_parts([&](const std::string& part) { parts.push_back(part); });
    executor->begin({{"x", x}});
    executor->run(SectionKind::step, {});
    executor->end();
    CHECK(parts ==
          std::vector<std::string>{"forward of stage 1, micro-batch 0", "a part of its own"});
  }
}

TEST_CASE("dynamic arguments follow variables: numbers, counts and random streams") {
  const Tensor x = full({4}, 2);
  const auto step = [&](double lr, std::int64_t count) {
    StepVariables variables;
    variables.numbers["lr"] = lr;
    variables.counts["step"] = count;
    variables.streams = random_state();
    return recorded(x, variables, [&](Recorder&) {
      const Tensor scaled = ops::mul_scalar(x, Number::variable("lr", lr));
      return ops::add(scaled, ops::dropout(x, 0.5, random_stream("noise")));
    });
  };
  random_stream("noise");
  const Recording first = step(0.25, 7);
  const Recording second = step(0.125, 8);
  const Program program = program_of(first, second);
  const std::string text = program.to_text();
  CHECK(text.find("=$lr}") != std::string::npos);
  CHECK(text.find("number lr\n") != std::string::npos);
  CHECK(text.find("stream noise draws 4\n") != std::string::npos);
  CHECK(text.find("=$noise}") != std::string::npos);
  StepVariables variables;
  variables.numbers["lr"] = 3;
  variables.streams = random_state();
  const RandomStream before = random_stream("noise");
  const std::vector<double> got = replayed(program, x, variables);
  CHECK(random_stream("noise").offset == before.offset + 4);
  random_stream("noise") = before;
  CHECK(got ==
        to_doubles(ops::add(ops::mul_scalar(x, 3), ops::dropout(x, 0.5, random_stream("noise")))));
}

TEST_CASE("what differs without a variable is refused with the call, and so are other steps") {
  const Tensor x = full({2}, 2);
  const auto scaled = [&](double by) {
    return recorded(x, [&] { return ops::mul_scalar(x, by); });
  };
  CHECK_THROWS_WITH(program_of(scaled(2), scaled(3)),
                    Catch::Contains("mul_scalar(%0; ") &&
                        Catch::Contains("differs from step to step") &&
                        Catch::Contains("(there are: none)"));
  const Recording exp = recorded(x, [&] { return ops::exp(x); });
  CHECK_THROWS_WITH(
      program_of(exp, recorded(x, [&] { return ops::log(x); })),
      Catch::Contains("instruction 1 of section 'step' was %1: f32[2] = exp(%0) and then %1: "
                      "f32[2] = log(%0)"));
  CHECK_THROWS_WITH(program_of(exp, recorded(x, [&] { return ops::exp(ops::exp(x)); })),
                    Catch::Contains("section 'step' has 1 and then 2 instructions"));
  const auto constant = [&](float value) {
    return recorded(x, [&] { return ops::add(x, full({2}, value)); });
  };
  CHECK_THROWS_WITH(program_of(constant(1), constant(2)),
                    Catch::Contains("two steps are not the same program"));
}

TEST_CASE("one recording says what arguments follow from, and as what") {
  const Tensor x = full({2}, 2);
  const auto rate_of = [](const Number& lr, const Number& step) {
    return min(lr * 0.3, 1 / sqrt(step)) - max(-lr, pow(step, -0.8)) * (2 - (lr - 1));
  };
  StepVariables variables;
  variables.numbers["lr"] = 0.5;
  variables.counts["step"] = 7;
  const Program program = program_of(recorded(x, variables, [&](Recorder&) {
    const Number lr = Number::variable("lr", 0.5);
    const Count step = Count::variable("step", 9).plus(-2);
    return ops::mul_scalar(ops::add_scalar(x, step.number().untraced_value()),  // a constant
                           rate_of(lr, step.number()));
  }));
  const std::string text = program.to_text();
  INFO(text);
  CHECK(text.find("{value=$min(lr*0.3, 1/sqrt(step-2))-max(-lr, pow(step-2, -0.8))*(2-(lr-1))}") !=
        std::string::npos);
  CHECK(text.find("number lr\ncount step\n") != std::string::npos);
  CHECK(Program::parse(text).to_text() == text);
  CHECK(program.guards.empty());
  StepVariables now;
  now.numbers["lr"] = 0.125;
  now.counts["step"] = 4;
  const double rate = std::min(0.125 * 0.3, 1 / std::sqrt(2.0)) -
                      std::max(-0.125, std::pow(2.0, -0.8)) * (2 - (0.125 - 1));
  CHECK(replayed(program, x, now) == to_doubles(ops::mul_scalar(ops::add_scalar(x, 7), rate)));
  now.counts.clear();
  CHECK_THROWS_WITH(replayed(program, x, now), Catch::Contains("'step' has no value"));
}

TEST_CASE("expressions are read back exactly, and what is none is refused") {
  for (const char* const text :
       {"lr", "-lr", "lr*0.3", "step+3", "a-b-c", "a-(b-c)", "a/(b*c)", "(a+b)*c", "-(a+b)",
        "1-lr*0.1", "min(a, max(b, 1e-08))", "pow(sqrt(a), -0.5)", "'my name'*2", "1.lr+before.lr",
        "a-(-0.5)", "-a*b", "inf*a", "'inf'+1"}) {
    CHECK(Expression::parse(text).text() == text);
  }
  for (const char* const text : {"", "a+", "min(a)", "(a", "a b", "'a", "a*", "sqrt(a, b)", "--"}) {
    CHECK_THROWS(Expression::parse(text));
  }
  CHECK_THROWS(Expression::parse(std::string(100000, '(')));
  StepVariables variables;
  variables.numbers = {{"a", 3}, {"b", 2}, {"c", 0.5}};
  CHECK(Expression::parse("a-b-c").value(variables) == 0.5);
  CHECK(Expression::parse("a-(b-c)").value(variables) == 1.5);
  CHECK(Expression::parse("-a*b+c").value(variables) == -5.5);
}

TEST_CASE("a plain number that is taken from a variable is an error that names it") {
  const Tensor x = full({2}, 2);
  const auto record = [&](const std::function<double()>& factor) {
    return recorded(x, {}, [&](Recorder&) { return ops::mul_scalar(x, factor()); });
  };
  const Number lr = Number::variable("lr", 0.5);
  const Count step = Count::variable("step", 3);
  CHECK_THROWS_WITH(record([&] { return lr.value(); }),
                    Catch::Contains("takes a plain number from lr ("));
  CHECK_THROWS_WITH(record([&] { return min(lr * 0.3, 1 / sqrt(step.number())).value(); }),
                    Catch::Contains("takes a plain number from lr and step ("));
  CHECK_THROWS_WITH(record([&] { return static_cast<double>(step.plus(2).value()); }),
                    Catch::Contains("from step ("));
  const double before = lr.value();  // of no recording
  record([&] { return before + Number(2).value() + lr.untraced_value(); });
}

TEST_CASE("a number that is taken out of its source differs without a variable") {
  const Tensor x = full({2}, 2);
  const auto record = [&](double lr) {
    StepVariables variables;
    variables.numbers["lr"] = lr;
    return recorded(x, variables, [&](Recorder&) {
      return ops::mul_scalar(x, Number::variable("lr", lr).untraced_value());
    });
  };
  CHECK_THROWS_WITH(program_of(record(1), record(2)),
                    Catch::Contains("differs from step to step (value=1.0, then value=2.0)") ||
                        Catch::Contains("differs from step to step (value=1, then value=2)"));
}

TEST_CASE("values that the host reads are checked in a replay; they must not change") {
  const Tensor x = full({2}, 2);
  const auto record = [&] {
    return recorded(x, [&] {
      const Tensor y = ops::exp(x);
      return ops::amax(x).item() > 1 ? y : x;
    });
  };
  const Program program = program_of(record(), record());
  CHECK(program.to_text().find("host.check(") != std::string::npos);
  CHECK(replayed(program, x) == to_doubles(ops::exp(x)));
  CHECK_THROWS_WITH(replayed(program, full({2}, 0)), Catch::Contains("the host read other values"));
}

TEST_CASE("what a program cannot repeat is an error while it is recorded") {
  const Tensor x = full({2}, 2);
  const Tensor stranger = full({2}, 1);
  CHECK_THROWS_WITH(
      recorded(x, [&] { return ops::add(x, stranger); }),
      Catch::StartsWith("record: operand 'b' of add is a f32[2] that was made before the "
                        "recorded step and is not one of its inputs"));
  const auto world = collective::World::single();
  CHECK_THROWS_WITH(recorded(x,
                             [&] {
                               double value = 1;
                               world->everyone().all_reduce(&value, &value, 1, DType::f64);
                               return Tensor(x);
                             }),
                    Catch::Contains("a communicator is called directly"));
  ops::PendingTensor pending;  // goes before its world
  CHECK_THROWS_WITH(recorded(x,
                             [&] {
                               const auto group = ops::GroupArgument::of(world->everyone());
                               pending = ops::all_reduce_async(x, ReduceOp::sum, group);
                               return Tensor(x);
                             }),
                    Catch::Contains("nothing waits for it within the step"));
}

TEST_CASE("a replay is held to its inputs") {
  const Tensor x = full({2}, 2);
  const auto record = [&] { return recorded(x, [&] { return ops::exp(x); }); };
  Replay replay(program_of(record(), record()));
  CHECK_THROWS_WITH(replay.begin({}), "replay: input 'x' is missing");
  CHECK_THROWS_WITH(replay.begin({{"x", full({3}, 1)}}),
                    "replay: input 'x' has another shape or type (expected f32[2], got f32[3]); "
                    "record the step again");
  CHECK_THROWS_WITH(replay.begin({{"x", x}, {"z", x}}),
                    "replay: the program has no input 'z'; record the step again");
  replay.begin({{"x", x}});
  CHECK_THROWS_WITH(replay.output("y"), "replay: there is no output 'y' yet");
  CHECK_THROWS_WITH(replay.run(SectionKind::update, {}),
                    "replay: the program has no section 'update'");
}
