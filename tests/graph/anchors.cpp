// Calls that only mark a place: passes leave them, a transformation replaces them in forward and
// backward, and one that is left is an error before anything runs.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.program;
import tessera.passes;
import tessera.capture;
import tessera.graph;

#include "program_text.hpp"

using namespace tessera;
using graph_test::body_of;
using graph_test::count;
using graph_test::program;
using testing::error_of;

namespace {

void like_first(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

const Op& block = graph::register_anchor(
    {.schema = "test_block(x, w)", .infer = like_first, .about = "Marks a product."});

graph::Change change(std::function<void(graph::Editor&)> run) {
  return {.name = "Test", .about = "", .run = std::move(run)};
}

/// x * w, with its gradient.
void put_products(graph::Editor& edit) {
  while (const auto place = edit.find("test_block")) {
    edit.replace(*place, [&](const std::vector<TensorIndex>& in) {
      return std::vector<TensorIndex>{edit.value("mul", in)};
    });
  }
  while (const auto place = edit.find("test_block_backward")) {
    edit.replace(*place, [&](const std::vector<TensorIndex>& in) {
      return std::vector<TensorIndex>{edit.value("mul", {in[2], in[1]}),
                                      edit.value("mul", {in[2], in[0]})};
    });
  }
}

/// exp(block(block(x, w), w)) and its gradients, recorded on the meta device.
Program recorded(const std::function<Tensor(const Tensor&, const Tensor&)>& product, Device device,
                 std::map<std::string, Tensor>* values = nullptr) {
  const auto leaf = [&](double value) {
    Tensor x = full({2, 3}, value, DType::f32, device);
    x.set_requires_grad(true);
    return x;
  };
  const Tensor x = leaf(0.3);
  const Tensor w = leaf(1.7);
  Recorder recorder;
  recorder.input("x", x);
  recorder.input("w", w);
  recorder.section(SectionKind::step, [&] {
    const Tensor loss = ops::sum(ops::exp(product(product(x, w), w)));
    backward(loss);
    recorder.output("loss", loss);
    recorder.output("dx", x.grad());
    recorder.output("dw", w.grad());
    if (values != nullptr) {
      *values = {{"loss", loss}, {"dx", x.grad()}, {"dw", w.grad()}};
    }
  });
  return recorder.finish({}).program;
}

Program with_anchors() {
  return recorded(
      [](const Tensor& x, const Tensor& w) { return call(block, std::vector{x, w})[0]; }, meta);
}

}  // namespace

TEST_CASE("anchors are replaced in forward and backward, with the bits of the block itself") {
  std::map<std::string, Tensor> expected;
  recorded([](const Tensor& x, const Tensor& w) { return ops::mul(x, w); }, cpu, &expected);
  const Program anchored = with_anchors();
  CHECK(count(anchored.to_text(), "= test_block(") == 2);
  CHECK(count(anchored.to_text(), "= test_block_backward(") == 2);
  CHECK(Program::parse(anchored.to_text()).to_text() == anchored.to_text());
  for (const std::string& name : graph::executor_names()) {
    for (const std::vector<std::string>& passes :
         {std::vector<std::string>{}, graph::default_passes(),
          std::vector<std::string>{"lifetimes", "recompute"}}) {
      INFO(name << " " << passes.size());
      const auto executor = graph::make_executor(
          anchored, {.executor = name, .passes = passes, .transforms = {change(put_products)}});
      CHECK(count(executor->program().to_text(), "test_block") == 0);
      executor->begin({{"x", full({2, 3}, 0.3)}, {"w", full({2, 3}, 1.7)}});
      executor->run(SectionKind::step, {});
      for (const auto& [output, value] : expected) {
        CHECK(to_doubles(executor->output(output)) == to_doubles(value));
      }
      executor->end();
    }
  }
}

TEST_CASE("passes neither merge, remove nor move anchors, and move no communication past one") {
  Program changed = program(
      "input %0: f32[2] = x\n"
      "section step\n"
      "  %1: f32[2] = test_block(%0, %0)\n"
      "  %2: f32[2] = test_block(%0, %0)\n"
      "  %3: f32[4] = all_gather_async(%0; dim=0, extent=4, group=ranks 0 1)\n"
      "  wait(%3)\n"
      "  %4: f32[2] = test_block(%0, %0)\n"
      "  %5: f32[2] = neg(%2)\n"
      "  %6: f32[4] = neg(%3)\n"
      "output %5 = y\n"
      "output %6 = z\n");
  std::vector<std::string> passes = graph::default_passes();
  passes.insert(passes.end(), {"keep_gathers", "recompute"});
  const std::string before = body_of(changed);
  graph::run_passes(changed, passes);
  CHECK(body_of(changed) == before);
}

TEST_CASE("a transformation after the anchor is gone sees what passes have left") {
  // The product of a constant: what `make` returns may be anything that is defined there.
  graph::AddedState added;
  Program changed = program(
      "input %0: f32[2] = x\nsection step\n  %1: f32[2] = test_block(%0, %0) @ forward in a.b\n"
      "  %2: f32[2] = neg(%1) @ forward\noutput %2 = y\noutput %1 = z\n");
  graph::run_change(change([](graph::Editor& edit) {
                      edit.replace({0, 0}, [&](const std::vector<TensorIndex>& in) {
                        const TensorIndex factor = edit.state("factor", full({2}, 3));
                        return std::vector<TensorIndex>{edit.value("mul", {in[0], factor})};
                      });
                      CHECK(edit.at() == 1);
                    }),
                    changed, added);
  CHECK(body_of(changed) ==
        "input %0: f32[2] = x\n"
        "input transform_state %3: f32[2] optimizer = transform.factor\n"
        "section step\n"
        "  %4: f32[2] activation = mul(%0, %3) @ forward in a.b\n"
        "  %2: f32[2] = neg(%4) @ forward\n"
        "output %2 = y\noutput %4 = z\n");
}

TEST_CASE("an anchor that is left is an error with its name, its place and its module") {
  const std::string expected =
      "anchor 'test_block': nothing was put in its place in section 'step', instruction 1 (%1: "
      "f32[2] = test_block(%0, %0) @ forward in a.b); replace it by Editor::replace in a "
      "change of this run";
  const Program anchored = program(
      "input %0: f32[2] = x\nsection step\n  %1: f32[2] = test_block(%0, %0) @ forward in a.b\n"
      "output %1 = y\n");
  for (const std::string& name : graph::executor_names()) {
    CHECK(error_of([&] { graph::make_executor(anchored, {.executor = name}); }) == expected);
  }
  const std::string eager = error_of([] { call(block, std::vector{zeros({2}), zeros({2})}); });
  CHECK(eager ==
        "test_block: it marks a place in captured steps and computes nothing; take captured steps, "
        "with the change that replaces it");
}

TEST_CASE("what does not fit in the place of an anchor is refused") {
  const auto refused = [](const std::function<void(graph::Editor&)>& run) {
    graph::AddedState added;
    Program changed = program(
        "input %0: f32[2] = x\ninput %3: f32[2] = unused\nsection step\n  %1: f32[2] = "
        "test_block(%0, %0)\n  wait(%1)\n  %2: f32[2] = neg(%1)\noutput %2 = y\n");
    return error_of([&] { graph::run_change(change(run), changed, added); });
  };
  const auto replaced = [&](const std::vector<TensorIndex>& by) {
    return refused([&](graph::Editor& edit) {
      edit.replace({0, 0}, [&](const std::vector<TensorIndex>&) { return by; });
    });
  };
  const std::string name = "change 'Test': ";
  CHECK(replaced({}) ==
        name +
            "test_block: what takes its place has another number of results (expected 1, got 0)");
  CHECK(replaced({TensorIndex(9)}) ==
        name +
            "test_block: what takes the place of result 0 does not fit (expected "
            "f32[2], got %9, which does not exist)");
  CHECK(replaced({TensorIndex()}) ==
        name + "test_block: nothing was made for its result %1, which is used");
  CHECK(
      refused([](graph::Editor& edit) {
        edit.replace({0, 0}, [&](const std::vector<TensorIndex>& in) {
          return std::vector<TensorIndex>{edit.value("sum", {in[0]}, "dims=[], keepdim=false")};
        });
      }) ==
      name +
          "test_block: what takes the place of result 0 does not fit (expected f32[2], got f32[])");
  CHECK(refused([](graph::Editor& edit) {
          edit.replace({0, 1},
                       [](const std::vector<TensorIndex>&) { return std::vector<TensorIndex>(); });
        }) == name + "Editor::replace: instruction 1 of section 0 is no call that makes results");
  CHECK(refused([](graph::Editor& edit) { edit.remove_input("w"); }) ==
        name + "Editor::remove_input: the step has no input 'w'");
  CHECK(refused([](graph::Editor& edit) { edit.remove_input("x"); }) ==
        name +
            "Editor::remove_input: 'x' is used in section 'step', instruction 1 (%1: f32[2] = "
            "test_block(%0, %0)); remove what uses it first");
  CHECK(error_of([] { graph::register_anchor({.schema = "nothing()"}); }) ==
        "register_anchor: the schema has no operands (expected the form \"name(a, b)\", got "
        "'nothing()')");
}
