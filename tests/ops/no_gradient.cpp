// Which operators make floating results of floating operands and have no gradient.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.conformance;

#include "operator_samples.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

const OperatorSamples& all_samples() {
  static const OperatorSamples samples = read_operator_samples(TESSERA_REFERENCE_DATA);
  return samples;
}

/// Operators without a gradient that make floating results of floating operands.
const std::set<std::string> without_gradient = {"floor_divide"};  // constant but for its jumps

}  // namespace

TEST_CASE("operators without a gradient are known") {
  std::set<std::string> found;
  for (const OperatorSample& sample : all_samples().samples) {
    const auto floats = [](const Tensor& x) { return x && is_floating(x.dtype()); };
    if (sample.op->backward != nullptr || sample.op->in_place || sample.op->form_of != nullptr ||
        std::none_of(sample.inputs.begin(), sample.inputs.end(), floats)) {
      continue;
    }
    const Tensors out = call(*sample.op, sample.inputs, sample.attributes);
    if (std::any_of(out.begin(), out.end(), floats)) {
      found.insert(sample.op->name);
    }
  }
  CHECK(found == without_gradient);
}
