// Programs executed on numbers that follow from their inputs.
// Included after the imports of tessera.tensor and tessera.program.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

namespace graph_test {

/// The output "y" of one execution.
inline std::vector<double> result_of(tessera::Executor& executor) {
  const tessera::Program& program = executor.program();
  std::map<std::string, tessera::Tensor> inputs;
  for (const auto& [name, input] : program.inputs) {
    const int number = input.tensor.number;
    const tessera::ProgramTensor& x = program.tensors[input.tensor];
    std::vector<float> values;
    for (int i = 0; i < x.shape.product(); ++i) {
      values.push_back(0.125F * static_cast<float>((i * 5 + number) % 13) - 0.75F);
    }
    inputs[name] = tessera::from_values<float>(std::span<const float>(values), x.shape);
  }
  executor.begin(inputs);
  for (const tessera::Section& section : program.sections) {
    executor.run(section.kind, {});
  }
  std::vector<double> result = tessera::to_doubles(executor.output("y"));
  executor.end();
  return result;
}

}  // namespace graph_test
