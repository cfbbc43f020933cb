module;
#include <cstddef>
#include <span>
#include <string>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

// Calls without data against calls with data.
namespace tessera::conformance {
namespace {

std::string shape_of(const Tensor& x) {
  return x ? std::string(name_of(x.dtype())) + to_string(x.shape()) : "none";
}

}  // namespace

std::vector<std::string> check_meta(std::span<const CallSample> samples) {
  const NoGrad constant;
  std::vector<std::string> findings;
  for (const CallSample& sample : samples) {
    std::vector<Tensor> shapes;
    for (const Tensor& x : sample.inputs) {
      shapes.push_back(x ? empty(x.shape(), x.dtype(), meta) : x);
    }
    const std::vector<Tensor> operands = copies_of(sample.inputs);
    const Tensors expected = call(*sample.op, operands, sample.attributes);
    try {
      const Tensors actual = call(*sample.op, shapes, sample.attributes);
      if (actual.size() != expected.size()) {
        findings.push_back(sample.name + " has another number of results on the meta device");
        continue;
      }
      for (std::size_t i = 0; i < actual.size(); ++i) {
        if (shape_of(actual[i]) != shape_of(expected[i])) {
          findings.push_back(sample.name + ": result " + std::to_string(i) + " is " +
                             shape_of(expected[i]) + ", and " + shape_of(actual[i]) +
                             " on the meta device");
        }
      }
    } catch (const Error& error) {
      findings.push_back(sample.name + " fails on the meta device: " + error.what());
    }
  }
  return findings;
}

}  // namespace tessera::conformance
