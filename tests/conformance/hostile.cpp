// Every operator with integers that nobody means: the largest and the smallest ones, and what
// overflows when it is multiplied. Each call is an error, or its results have shapes that can be.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

#include "conformance.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr std::int64_t one = 1;
constexpr std::int64_t hostile[] = {std::numeric_limits<std::int64_t>::max(),
                                    std::numeric_limits<std::int64_t>::max() - 1,
                                    std::numeric_limits<std::int64_t>::min(),
                                    std::numeric_limits<std::int64_t>::min() + 1,
                                    one << 62,
                                    -(one << 62),
                                    (one << 61) + 1,
                                    one << 40,
                                    one << 32,
                                    -(one << 32),
                                    (one << 32) + 1,
                                    one << 31,
                                    -1,
                                    -2,
                                    0};

/// The attributes with the fixed one at `place` exchanged.
Attributes exchanged(const Attributes& attributes, std::size_t place, std::int64_t value) {
  Attributes changed;
  const std::span<const std::int64_t> fixed = attributes.fixed();
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    changed.add(i == place ? value : fixed[i]);
  }
  return changed.take_free(attributes);
}

/// Whether its attributes are integers; addresses are not for us to change, numbers have any bits.
bool of_integers(const Op& op) {
  for (const Op::Parameter& parameter : op.parameters) {
    if (parameter.type == "spec" || parameter.type == "communicator" || parameter.type == "dtype" ||
        parameter.type == "number") {
      return false;
    }
  }
  return true;
}

/// Calls without memory, but views, which take none.
std::vector<Tensor> operands_of(const CallSample& sample) {
  std::vector<Tensor> in;
  for (const Tensor& x : sample.inputs) {
    in.push_back(!x || sample.op->view != nullptr ? x : empty(x.shape(), x.dtype(), meta));
  }
  return in;
}

/// What is wrong with a result; empty when nothing is.
std::string fault_of(const Tensor& result) {
  try {
    checked_product(result.shape(), "result");
  } catch (const Error& error) {
    return error.what();
  }
  if (result.is_meta() || result.numel() == 0) {
    return {};
  }
  std::int64_t first = result.offset();
  std::int64_t last = result.offset();
  for (int d = 0; d < result.dims(); ++d) {
    const std::int64_t span =
        checked_multiply(result.shape()[d] - 1, result.strides()[d], "result");
    (span < 0 ? first : last) += span;
  }
  const auto elements =
      static_cast<std::int64_t>(result.storage().bytes() / size_of(result.dtype()));
  return first >= 0 && last < elements ? "" : "leaves its memory: " + to_string(result.strides());
}

}  // namespace

TEST_CASE("integers that overflow are errors of the operator that got them") {
  std::size_t refused = 0;
  std::size_t taken = 0;
  const NoGrad constant;
  for (const CallSample& sample : call_samples(2)) {
    if (!of_integers(*sample.op) || sample.op->distributed != nullptr) {
      continue;
    }
    const std::vector<Tensor> in = operands_of(sample);
    for (std::size_t place = 0; place < sample.attributes.fixed().size(); ++place) {
      for (const std::int64_t value : hostile) {
        INFO(sample.name << " " << sample.op->schema << ", number " << place << " is " << value);
        try {
          const Tensors out = call(*sample.op, in, exchanged(sample.attributes, place, value));
          for (const Tensor& result : out) {
            CHECK(fault_of(result).empty());
          }
          ++taken;
        } catch (const Error& error) {
          CHECK(std::string(error.what()).find(": ") != std::string::npos);
          ++refused;
        } catch (const std::exception& error) {
          FAIL_CHECK("fails otherwise: " << error.what());
        }
      }
    }
  }
  CHECK(refused > 1000);
  CHECK(taken > 100);
}
