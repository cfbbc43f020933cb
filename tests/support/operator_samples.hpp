// Samples of operators with PyTorch's results (tests/reference/data/*operators.*), ready to be
// called: no operator is known here by name, the schema says how operands and attributes are
// packed. Include it last, behind the imports of
// tessera.{base,mesh,placement,tensor} and behind this header's own includes.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing {

struct OperatorSample {
  const Op* op = nullptr;
  std::string name;            // "sum/3"
  std::vector<Tensor> inputs;  // one for each operand, a list's one by one; absent ones undefined
  Attributes attributes;
  std::vector<Tensor> outputs;
  std::vector<Tensor> output_gradients;  // undefined: the output takes part in no gradient
  std::vector<Tensor> input_gradients;   // undefined: no gradient is expected
};

struct OperatorSamples {
  std::vector<OperatorSample> samples;        // of operators that are registered
  std::vector<std::string> without_operator;  // names of operators that have samples only
  std::vector<std::string> without_sample;    // names of registered operators that have none
};

/// Reads all of `folder`/*operators.json and the safetensors files beside them. Errors: an
/// attribute that the sample lacks, or has but the schema does not know.
OperatorSamples read_operator_samples(const std::string& folder);

/// A call of a function that calls several operators: no schema says what its arguments are.
struct FunctionSample {
  std::string function;
  OperatorSample sample;                               // without operator and attributes
  std::map<std::string, std::vector<double>> numbers;  // numbers, bools and lists by name
};
/// Reads `folder`/functions.json and functions.safetensors.
std::vector<FunctionSample> read_function_samples(const std::string& folder);

/// The tensors of a safetensors file (float, integer and bool types).
std::map<std::string, Tensor> read_safetensors(const std::string& path);

/// Fresh leaves with the sample's values; floating ones require a gradient.
std::vector<Tensor> fresh_inputs(const OperatorSample& sample, bool requires_grad);

using conformance::largest_difference;
using conformance::tolerance;

}  // namespace tessera::testing
