// Loops that are generated for chains of operators and compiled by NVRTC: the emulator's makes what
// it runs of the same source.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
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

#include "../graph/element_program.hpp"
#include "device.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

std::map<std::string, Tensor> inputs_of(const Program& program, int step, int device = 0) {
  std::map<std::string, Tensor> inputs;
  double seed = step;
  for (const auto& [name, input] : program.inputs) {
    const ProgramTensor& x = program.tensors[input.tensor];
    const Tensor all = ops::mul_scalar(
        ops::sin(ops::add_scalar(ops::mul_scalar(counted(x.shape.product()), 0.7), seed++)), 3);
    inputs[name] = ops::to_device(ops::cast(ops::reshape(all, x.shape), x.dtype), cuda(device));
  }
  return inputs;
}

/// Outputs and inputs after each of three steps; NaN as a number.
std::vector<double> values_after(graph::PlannedExecutor& planned, const StepVariables& variables,
                                 int device = 0) {
  std::vector<double> values;
  const auto add = [&](const Tensor& x) {
    for (const double value : to_doubles(x)) values.push_back(std::isnan(value) ? 12345 : value);
  };
  for (int step = 0; step < 3; ++step) {
    next_order();
    const auto inputs = inputs_of(planned.program(), step, device);
    planned.begin(inputs);
    planned.run(SectionKind::step, variables);
    for (const auto& [name, number] : planned.program().outputs) add(planned.output(name));
    planned.end();
    for (const auto& [name, x] : inputs) add(x);
  }
  return values;
}

graph::CompiledKernels same_bits(const Program& program, const StepVariables& variables = {},
                                 bool device_graphs = false) {
  graph::PlannedExecutor plain(program);
  graph::PlannedExecutor compiled(program, true, nullptr, device_graphs, cuda().type);
  INFO(program.to_text());
  const std::vector<double> wanted = values_after(plain, variables);
  const std::uint64_t before = emulator_launches();
  const std::vector<double> found = values_after(compiled, variables);
  REQUIRE(found.size() == wanted.size());
  CHECK(std::ranges::equal(found, wanted));
  CHECK(emulator_launches() > before);
  return *compiled.compiled();
}

}  // namespace

TEST_CASE("every operator with an element has its kernel's bits in a loop of a GPU") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const graph_test::AllElements all = graph_test::all_elements(dtype);
    const graph::CompiledKernels made = same_bits(all.program);
    CHECK(made.missing == "");
    CHECK(made.replaced == all.calls);
    CHECK(all.calls > 30);
  }
}

TEST_CASE("loops of a GPU broadcast, compare, take numbers, and write where an operand was") {
  const Program program = graph_test::program(
      "number scale\n"
      "input %0: f32[6, 35] = x\n"
      "input %1: f32[35] = columns\n"
      "input %2: f32[6, 1] = rows\n"
      "input %3: f32[1, 1] = one\n"
      "section step\n"
      "  %4: f32[6, 35] = mul(%0, %1)\n"
      "  %5: f32[6, 35] = add(%4, %2; alpha=0.5)\n"
      "  %6: bool[6, 35] = lt(%5, %0)\n"
      "  %7: f32[6, 35] = masked_fill(%4, %6; value=2)\n"
      "  %8: f32[6, 35] = mul_scalar(%7; value=1) {value=$scale}\n"
      "  neg_(%0)\n"
      "  %9: f32[6, 35] = div(%3, %8)\n"
      "  %10: f32[35] = sum(%9; dims=[0], keepdim=false)\n"
      "  %11: f32[35] = exp(%10)\n"
      "  %12: f32[35] = mul(%11, %10)\n"
      "output %9 = y\n"
      "output %12 = z\n");
  const graph::CompiledKernels made = same_bits(program, {.numbers = {{"scale", 0.375}}});
  CHECK((made.missing == "" && made.chains == 2 && made.kernels == 2));
  CHECK(same_bits(program, {.numbers = {{"scale", 0.75}}}, true).chains == 2);
}

TEST_CASE("loops of a GPU are compiled once, and another device finds them in the cache") {
  const Program program = graph_test::program(
      "input %0: f32[6, 35] = x\nsection step\n  %1: f32[6, 35] = sin(%0)\n"
      "  %2: f32[6, 35] = mul(%1, %0)\noutput %2 = y\n");
  std::vector<double> values[2];
  for (const int device : {0, 1}) {
    const std::uint64_t before = emulator_compilations();
    graph::PlannedExecutor planned(program, true, nullptr, false, cuda().type);
    values[device] = values_after(planned, {}, device);
    CHECK(planned.compiled()->replaced == 2);
    CHECK(emulator_compilations() - before == (device == 0 ? 1 : 0));
  }
  CHECK(values[0] == values[1]);
}

TEST_CASE("a function that is no C++ is refused by NVRTC with the operator's remedy") {
  static const Op& op = register_op(
      {.schema = "wrong_on_device(x)",
       .infer = [](const Call& call,
                   ResultShapes& out) { out.push_back({call.in[0].shape(), call.in[0].dtype()}); },
       .cpu = [](const Call&, std::span<Tensor>) {},
       .any_device = [](const Call&, std::span<Tensor>) {},
       .element =
           [](const Call&) {
             return Element{.function = "WrongOnDevice",
                            .header =
                                "struct WrongOnDevice { static constexpr bool is_truth = "
                                "false; template <class T> static T value(T a) "
                                "{ return a +; } };"};
           }});
  graph::PlannedExecutor planned(
      graph_test::program("input %0: f32[8] = x\nsection step\n  %1: f32[8] = " + op.name +
                          "(%0)\n  %2: f32[8] = neg(%1)\noutput %2 = y\n"),
      true, nullptr, false, cuda().type);
  CHECK_THROWS_WITH(
      planned.begin(inputs_of(planned.program(), 0)),
      Catch::Contains("NVRTC refuses the generated code: expected expression; correct "
                      "Op::element of the operator"));
}
