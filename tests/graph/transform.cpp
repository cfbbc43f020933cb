// Changes of what a step computes: instructions and state are added, and what does not fit is an
// error that names the transformation.
#include <functional>
#include <map>
#include <memory>
#include <string>
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
import tessera.graph;

#include "program_text.hpp"

using namespace tessera;
using graph_test::body_of;
using graph_test::program;
using testing::error_of;

namespace {

const std::string step =
    "input %0: f32[2, 2] = x\n"
    "section step\n"
    "  %1: f32[2, 2] = exp(%0)\n"
    "  %2: f32[] = sum(%1; dims=[], keepdim=false)\n"
    "output %2 = loss\n";

graph::Change change(std::function<void(graph::Editor&)> run) {
  return {.name = "Test", .about = "", .run = std::move(run)};
}

/// The step's loss is multiplied by a state that grows by 1 in each step.
void count(graph::Editor& edit) {
  const TensorIndex steps = edit.state("steps", full({}, 1));
  edit.move_to(0, 2);
  const TensorIndex loss = edit.value("mul", {edit.program().outputs.at("loss"), steps});
  const TensorIndex one = edit.value("ones_like", {steps});
  CHECK(edit.call("add_", {steps, one}, "alpha=1").empty());
  edit.program().outputs["loss"] = loss;
}

std::string refused(const std::function<void(graph::Editor&)>& run) {
  graph::AddedState added;
  Program changed = program(step);
  return error_of([&] { graph::run_change(change(run), changed, added); });
}

}  // namespace

TEST_CASE("a transformation adds calls and state, on every executor") {
  for (const std::string& name : graph::executor_names()) {
    INFO(name);
    graph::AddedState added;
    const std::unique_ptr<Executor> executor = graph::make_executor(
        program(step), {.executor = name, .transforms = {change(count)}}, &added);
    REQUIRE(added.size() == 1);
    std::map<std::string, Tensor> inputs = added;
    inputs["x"] = full({2, 2}, 0);
    for (const double factor : {1.0, 2.0, 3.0}) {
      executor->begin(inputs);
      executor->run(SectionKind::step, {});
      CHECK(executor->output("loss").item() == 4 * factor);
      executor->end();
    }
    CHECK(added.at("transform.steps").item() == 4);
  }
}

TEST_CASE("programs of one training share what transformations add") {
  graph::AddedState added;
  Program first = program(step);
  graph::run_change(change(count), first, added);
  const Tensor state = added.at("transform.steps");
  Program second = program(step);
  graph::run_change(change(count), second, added);
  CHECK(added.at("transform.steps").same_as(state));
  CHECK(first.to_text() == second.to_text());
  CHECK(Program::parse(first.to_text()).to_text() == first.to_text());
  Program third = program(step);
  const std::string error = error_of([&] {
    graph::run_change(change([](graph::Editor& edit) { edit.state("steps", zeros({3})); }), third,
                      added);
  });
  CHECK(error ==
        "change 'Test': transform.steps: another step of this run, or its checkpoint, has "
        "this state in another form (expected f32[], got f32[3])");
}

TEST_CASE("calls are added where the editor is, with the scope of their place") {
  graph::AddedState added;
  Program changed = program(
      "input %0: f32[2, 2] = x\n"
      "section step\n"
      "  %1: f32[2, 2] = exp(%0) @ forward in a\n"
      "  %2: f32[2, 2] = neg(%1) @ forward in b\n"
      "output %2 = y\n");
  graph::run_change(change([](graph::Editor& edit) {
                      edit.move_to(0, 1);
                      const TensorIndex y = edit.value("neg", {TensorIndex(1)});
                      CHECK(edit.at() == 2);
                      edit.program().sections[0].instructions[edit.at()].in[0] = y;
                      const std::vector<TensorIndex> two =
                          edit.call("topk", {y}, "k=1, dim=1, largest=true");
                      CHECK(two.size() == 2);
                    }),
                    changed, added);
  CHECK(body_of(changed) ==
        "input %0: f32[2, 2] = x\n"
        "section step\n"
        "  %1: f32[2, 2] = exp(%0) @ forward in a\n"
        "  %3: f32[2, 2] activation = neg(%1) @ forward in b\n"
        "  %4: f32[2, 1] activation, %5: i64[2, 1] activation = topk(%3; k=1, dim=1, largest=true) "
        "@ forward in b\n"
        "  %2: f32[2, 2] = neg(%3) @ forward in b\n"
        "output %2 = y\n");
}

TEST_CASE("what a transformation does wrong is an error with its name") {
  const TensorIndex x(0);
  const auto says = [](const std::string& error, const std::string& words) {
    INFO(error);
    CHECK(error.starts_with("change 'Test': "));
    CHECK(error.find(words) != std::string::npos);
  };
  says(refused([&](graph::Editor& edit) { edit.value("expp", {x}); }), "did you mean 'exp'");
  says(refused([&](graph::Editor& edit) { edit.value("exp", {TensorIndex(9)}); }),
       "there is no %9");
  says(refused([&](graph::Editor& edit) { edit.value("mul", {x}); }), "wrong number of operands");
  says(refused([&](graph::Editor& edit) { edit.call("sum", {x}, "dim=1"); }), "sum");
  says(refused([&](graph::Editor& edit) { edit.call("transpose", {x}, "dim0=0, dim1=1"); }),
       "memory.alias");
  says(refused([&](graph::Editor& edit) { edit.value("topk", {x}, "k=1, dim=1, largest=true"); }),
       "use Editor::call");
  says(refused([](graph::Editor& edit) { edit.move_to(0, 3); }), "no instruction 3 in section 0");
  says(refused([](graph::Editor& edit) { edit.move_to(1, 0); }), "section 1");
  says(refused([](graph::Editor& edit) { edit.state("s", empty({}, DType::f32, meta)); }),
       "on the CPU");
  says(refused([](graph::Editor& edit) {
         edit.state("s", zeros({}));
         edit.state("s", zeros({}));
       }),
       "use another name");
  says(refused([&](graph::Editor& edit) { edit.program().outputs.clear(); }),
       "it has no output 'loss' any more");
  says(refused([](graph::Editor& edit) {
         const ProgramTensor like = edit.program().tensors[TensorIndex(0)];
         edit.program().inputs["y"] = {.tensor = edit.program().tensors.add(like)};
       }),
       "nothing has its input 'y' (f32[2, 2])");
  says(refused([](graph::Editor& edit) {
         edit.program().sections[0].instructions.erase(
             edit.program().sections[0].instructions.begin());
       }),
       "%1 is used before it is defined");
}

TEST_CASE("a program that has lost an input runs without it") {
  graph::AddedState added;
  Program changed = program(
      "input %0: f32[2] = x\ninput %1: f32[2] = unused\nsection step\n  %2: f32[2] = exp(%0)\n"
      "output %2 = y\n");
  graph::run_change(change([](graph::Editor& edit) { edit.program().inputs.erase("unused"); }),
                    changed, added);
  Replay replay(changed);
  replay.begin({{"x", zeros({2})}});
  replay.run(SectionKind::step, {});
  CHECK(to_doubles(replay.output("y")) == std::vector<double>{1, 1});
  replay.end();
}
