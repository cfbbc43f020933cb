// Guards that are read within a step: their text, what is verified, and what a replay does where
// one fails.
#include <cstddef>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.capture;
import tessera.execute;
import tessera.program;
import tessera.tensor;

using namespace tessera;

namespace {

/// A step with one input, which doubles it where it has a large element.
Recording recording_of(const Tensor& x, const std::string& name = "large") {
  Recorder recorder;
  recorder.input("x", x);
  recorder.section(SectionKind::step, [&] {
    const Tensor large = ops::gt(ops::amax(x), 1);
    const Tensor y = guard(name, large) > 0 ? ops::add(x, x) : ops::neg(x);
    recorder.output("y", y);
  });
  return recorder.finish({});
}

Program program_of_step(const Tensor& x) { return program_of(recording_of(x), recording_of(x)); }

std::string text_with(const std::string& instructions) {
  return "tessera program 2\nrank 0\ninput %0: f32[2] = x\nsection step\n" + instructions + "end\n";
}

const std::string decision =
    "  %1: f32[] = amax(%0; dims=[], keepdim=false, across_ranks=false, whole=none)\n";

}  // namespace

TEST_CASE("a guard is written, read and found") {
  const Program program = program_of_step(full({2}, 3));
  const std::string text = program.to_text();
  CHECK(text.find("  host.guard(%2; large, 1)\n") != std::string::npos);
  CHECK(Program::parse(text).to_text() == text);
  const std::vector<GuardValue> guards = guards_of(program);
  REQUIRE(guards.size() == 1);
  CHECK((guards[0].name == "large" && guards[0].module.empty() && guards[0].value == 1));
  graph::verify(program);
  Program other = program;
  other.sections[0].instructions[2].guard = "small";
  CHECK_THROWS_WITH(graph::verify_same(program, other), Catch::Contains("in another order"));
}

TEST_CASE("a replay in which a guard differs is given up, with nothing changed") {
  const Tensor x = full({2}, 3);
  const Program program = program_of_step(x);
  graph::PlannedExecutor planned(program);
  Replay replay(program);
  for (Executor* const executor :
       {static_cast<Executor*>(&planned), static_cast<Executor*>(&replay)}) {
    const auto take = [&](const Tensor& input) {
      executor->begin({{"x", input}});
      executor->run(SectionKind::step, {});
      const std::vector<double> values = to_doubles(executor->output("y"));
      executor->end();
      return values;
    };
    CHECK(take(full({2}, 4)) == std::vector<double>{8, 8});
    try {
      take(full({2}, 0.5));
      FAIL("the guard holds");
    } catch (const GuardFailure& failed) {
      CHECK(failed.number() == 0);
      CHECK(failed.now() == 0);
      CHECK(std::string(failed.what()).find("guard 'large' is 0, was 1") != std::string::npos);
    }
    executor->abandon();
    CHECK(take(full({2}, 5)) == std::vector<double>{10, 10});
  }
}

TEST_CASE("nothing that outlives a step changes before a guard") {
  const auto refused = [](const std::string& instructions) {
    const Program program = Program::parse(text_with(instructions));
    try {
      graph::verify(program);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string guarded = "  host.guard(%1; large, 1) @ forward in net.block\n";
  CHECK(refused(decision + guarded + "  neg_(%0)\n") == "accepted");
  CHECK(refused(decision + "  neg_(%1)\n" + guarded) == "accepted");
  const std::string direct = refused(decision + "  neg_(%0)\n" + guarded);
  CHECK(
      direct.starts_with("guard 'large' in module 'net.block': the step has changed 'x' before it "
                         "(neg_(%0)), so a replay could not be given up there; read the guard "
                         "before"));
  // Through views of its memory, whichever operator makes them.
  CHECK(refused(decision + "  %2: f32[1] = memory.alias(%0; strides=[1], offset=1)\n  neg_(%2)\n" +
                guarded)
            .find("has changed 'x'") != std::string::npos);
  CHECK(refused(decision + "  %2: f32[1] = narrow(%0; dim=0, start=0, length=1)\n  neg_(%2)\n" +
                guarded)
            .find("has changed 'x'") != std::string::npos);
  CHECK(refused(decision + "  memory.release(%0)\n  memory.restore(%0)\n" + guarded)
            .find("has changed 'x'") != std::string::npos);
  // Program text is refused where the guard is not one.
  CHECK_THROWS_WITH(Program::parse(text_with(decision + "  host.guard(%1; 1)\n")),
                    Catch::Contains("line 6"));
  CHECK_THROWS_WITH(Program::parse(text_with(decision + "  host.guard(%1; large, 1, 2)\n")),
                    Catch::Contains("wrong number of values"));
}

TEST_CASE("what cannot be a guard is an error") {
  CHECK_THROWS_WITH(guard("two words", full({}, 1)), Catch::Contains("the name is not one"));
  CHECK_THROWS_WITH(guard("g", full({2}, 1)), Catch::Contains("the decision is not one number"));
  CHECK_THROWS_WITH(guard("g", Tensor()), Catch::Contains("got no tensor"));
  CHECK_THROWS_WITH(guard("g", ops::log(full({}, -1))), Catch::Contains("the decision is NaN"));
  const DeviceMesh mesh = DeviceMesh::make({"x"}, {1});
  const Tensor partial =
      from_local(full({}, 2), Layout::replicated(mesh).with_placement(0, Partial()));
  CHECK_THROWS_WITH(guard("g", partial), Catch::Contains("ranks would read different numbers"));
  CHECK(guard("g", redistribute(partial, Layout::replicated(mesh))) == 2);
  CHECK(guard("g", full({1, 1}, -0.5)) == -0.5);
  CHECK(guard("g", empty({}, DType::f32, meta), 7) == 7);
}

TEST_CASE("a read that is no guard says which guard would make it legal") {
  const auto recorded = [](const Tensor& x) {
    Recorder recorder;
    recorder.input("x", x);
    const ModuleScope module(interned_name("net.block"));
    recorder.section(SectionKind::step, [&] {
      static_cast<void>(ops::sum(x).item());
      recorder.output("y", ops::neg(x));
    });
    return recorder.finish({});
  };
  const Tensor x = full({2}, 3);
  const std::string legal =
      "a value that decides how the step goes on is read by guard(\"name\", x)";
  CHECK_THROWS_WITH(program_of(recorded(x), recorded(full({2}, 4))),
                    Catch::Contains("the host reads a result of sum in module 'net.block', which "
                                    "was host.check(") &&
                        Catch::Contains(legal));
  Replay replay(program_of(recorded(x), recorded(x)));
  replay.begin({{"x", full({2}, 4)}});
  CHECK_THROWS_WITH(replay.run(SectionKind::step, {}),
                    Catch::Contains("of a result of sum in module 'net.block': the host read other "
                                    "values") &&
                        Catch::Contains(legal));
}
