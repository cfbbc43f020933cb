// The conformance of the registered operators. Include it last, behind the imports of tessera.base,
// mesh, placement and tensor.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing {

using namespace conformance;

/// Calls for operators of any kind: PyTorch's samples; what their backward calls; operators that
/// write their operand, from the samples of those that do not; operators of one tensor, on tensors
/// of several shapes; a few calls of operators that need more. Small ones in f64 only. `most`: so
/// many for each operator and source.
std::vector<CallSample> call_samples(std::size_t most);

/// Operators that have no placement rule to check, each with the reason.
const std::map<std::string, std::string>& not_covered();
/// docs/operators.md: all registered operators but those of tests, with what propagates on one of
/// their samples.
std::string operators_page(const std::map<std::string, std::vector<CallSample>>& samples);

}  // namespace tessera::testing
