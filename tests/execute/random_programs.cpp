// Random programs, made smaller where they fail: what is recorded has the bits of the calls
// themselves, from its text and by every executor.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "generators.hpp"
#include "property.hpp"

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.capture;
import tessera.graph;

#include "random_step.hpp"

using namespace tessera;
using testing::Bits;
using testing::ProgramCall;
using Calls = std::vector<ProgramCall>;

namespace {

constexpr int operators = 14;
const Dims shape = {3, 4};

/// Calls operator `call.op`. All values have one shape, so any of them fit any operator; some share
/// memory.
void take(const ProgramCall& call, const StepVariables& variables, std::vector<Tensor>& values) {
  const Tensor x = values[call.first % values.size()];
  const Tensor y = values[call.second % values.size()];
  const Tensor other = &x.storage() == &y.storage() ? ops::clone(y) : y;
  const auto add = [&](Tensor result) { values.push_back(std::move(result)); };
  switch (call.op) {
    case 0:
      return add(ops::add(x, y, 0.5));
    case 1:
      return add(ops::tanh(x));
    case 2:
      return add(ops::mul(x, ops::sigmoid(y)));
    case 3:
      return add(ops::mul_scalar(x, Number::variable("lr", variables.numbers.at("lr"))));
    case 4:
      return add(ops::where(ops::gt(x, 0.0), x, y));
    case 5:
      return add(ops::softmax(x, 1));
    case 6:
      return add(ops::rms_norm(x, {}, 1e-3));
    case 7:
      return add(ops::sub(x, ops::sum(y, {1}, true), 0.25));
    case 8:
      return add(ops::tanh(ops::mm(ops::mm(x, ops::transpose(y, 0, 1)), x)));
    case 9:  // a view where x is contiguous
      return add(ops::transpose(ops::reshape(x, {4, 3}), 0, 1));
    case 10:
      return add(ops::cast(ops::cast(x, DType::bf16), DType::f32));
    case 11:
      return add(ops::contiguous(x));
    case 12:
      ops::add_(x, other, 0.25);
      return;
    default:
      ops::mul_(x, ops::sigmoid(other));
  }
}

std::map<std::string, Tensor> inputs_of(int step) {
  std::map<std::string, Tensor> inputs;
  for (const std::string name : {"a", "b"}) {
    std::vector<float> values;
    for (int i = 0; i < shape.product(); ++i) {
      values.push_back(0.125F * static_cast<float>((i * 5 + 3 * step + name[0]) % 17) - 1);
    }
    inputs[name] = from_values<float>(std::span<const float>(values), shape);
  }
  return inputs;
}

StepVariables variables_of(int step) { return {.numbers = {{"lr", 0.5 + 0.0625 * step}}}; }

std::map<std::string, Tensor> outputs_of(const Calls& calls, const StepVariables& variables,
                                         const std::map<std::string, Tensor>& inputs) {
  std::vector<Tensor> values = {inputs.at("a"), inputs.at("b")};
  for (const ProgramCall& call : calls) {
    take(call, variables, values);
  }
  return {{"last", values.back()}, {"before", values[values.size() - 2]}};
}

/// Also of what the calls wrote to their inputs.
Bits bits_of(const std::map<std::string, Tensor>& outputs,
             const std::map<std::string, Tensor>& inputs) {
  Bits bits;
  for (const auto& [name, x] : outputs) {
    testing::add_bits(bits, name, x);
  }
  for (const auto& [name, x] : inputs) {
    testing::add_bits(bits, "input " + name, x);
  }
  return bits;
}

Bits eager(const Calls& calls, int step) {
  const auto inputs = inputs_of(step);
  return bits_of(outputs_of(calls, variables_of(step), inputs), inputs);
}

Recording recorded(const Calls& calls, int step) {
  Recorder recorder;
  const auto inputs = inputs_of(step);
  for (const auto& [name, x] : inputs) {
    recorder.input(name, x);
  }
  std::map<std::string, Tensor> outputs;
  recorder.section(SectionKind::step,
                   [&] { outputs = outputs_of(calls, variables_of(step), inputs); });
  for (const auto& [name, x] : outputs) {
    recorder.output(name, x);
  }
  return recorder.finish(variables_of(step));
}

Bits executed(Executor& executor, int step) {
  const auto inputs = inputs_of(step);
  executor.begin(inputs);
  executor.run(SectionKind::step, variables_of(step));
  std::map<std::string, Tensor> outputs;
  for (const auto& [name, output] : executor.program().outputs) {
    outputs[name] = executor.output(name);
  }
  const Bits bits = bits_of(outputs, inputs);
  executor.end();
  return bits;
}

/// The compiler takes a second for a program.
bool is_compiled(const Calls& calls) {
  std::size_t sum = 0;
  for (const ProgramCall& call : calls) {
    sum += call.op + call.first;
  }
  return sum % 40 == 1;
}

}  // namespace

TEST_CASE("a random program has the bits of its calls in every executor") {
  int compiled = 0;
  testing::property("program", 400, [&] {
    const Calls calls = *testing::program_calls(operators, 24);
    const Program program = program_of(recorded(calls, 0), recorded(calls, 1));
    const std::string text = program.to_text();
    const Program again = Program::parse(text);
    testing::check(again.to_text() == text, "the text is not read back exactly");
    for (const std::string& name : graph::executor_names()) {
      if (name == "compiled" && !is_compiled(calls)) {
        continue;
      }
      compiled += name == "compiled" ? 1 : 0;
      const auto executor = graph::make_executor(again, {.executor = name});
      for (int step = 0; step < 3; ++step) {
        testing::check(executed(*executor, step) == eager(calls, step),
                       name + " differs in step " + std::to_string(step) + "\n" + text);
      }
    }
  });
  CHECK(compiled > 3);
}
