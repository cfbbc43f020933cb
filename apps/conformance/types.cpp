module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

// Samples in the other floating types, and how exact a result in them can be.
namespace tessera::conformance {
namespace {

/// Numbers of operands that one number of the result is made of: those that a reduction sums, or a
/// product of two operands (m k and k n elements for m n results are k).
double reduction_length(const CallSample& sample, std::int64_t count) {
  const double results = static_cast<double>(std::max<std::int64_t>(count, 1));
  double length = 1;
  double largest[2] = {1, 1};
  for (const Tensor& x : sample.inputs) {
    if (!x) {
      continue;
    }
    const auto elements = static_cast<double>(x.numel());
    length = std::max(length, elements / results);
    for (const std::int64_t extent : x.shape()) {
      length = std::max(length, static_cast<double>(extent));
    }
    if (elements > largest[0]) {
      largest[1] = std::exchange(largest[0], elements);
    } else {
      largest[1] = std::max(largest[1], elements);
    }
  }
  return std::max(length, std::sqrt(largest[0] * largest[1] / results));
}

/// The sample with the floating operands in these types; nothing where the operator refuses them.
std::optional<CallSample> with_types(const CallSample& sample, std::span<const DType> types) {
  const NoGrad constant;
  CallSample other = sample;
  std::size_t next = 0;
  for (Tensor& x : other.inputs) {
    if (x && is_floating(x.dtype())) {
      x = ops::cast(x, types[next++]);
    }
  }
  ResultShapes results;
  try {
    if (sample.op->infer != nullptr) {
      sample.op->infer({*other.op, other.inputs, other.attributes}, results);
    }
    std::vector<Tensor> operands;
    for (const Tensor& x : other.inputs) {
      operands.push_back(x ? ops::clone(x) : x);
    }
    call(*other.op, operands, other.attributes);
  } catch (const Error&) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < other.output_gradients.size(); ++i) {
    if (other.output_gradients[i]) {
      other.output_gradients[i] = ops::cast(other.output_gradients[i], results[i].dtype);
    }
  }
  return other;
}

}  // namespace

std::vector<CallSample> in_type(std::span<const CallSample> samples, DType dtype) {
  // Statistics of narrow types, and parameters of narrow gradients, are f32.
  constexpr std::size_t most = 8;
  std::vector<CallSample> found;
  for (const CallSample& sample : samples) {
    const auto floating = static_cast<std::size_t>(
        std::count_if(sample.inputs.begin(), sample.inputs.end(),
                      [](const Tensor& x) { return x && is_floating(x.dtype()); }));
    if (floating == 0 || floating > most) {
      continue;
    }
    const std::size_t choices = dtype == DType::f32 ? 1 : (std::size_t{1} << floating) - 1;
    for (std::size_t wide = 0; wide < choices; ++wide) {  // bit i: operand i is f32
      std::vector<DType> types;
      for (std::size_t i = 0; i < floating; ++i) {
        types.push_back((wide >> i & 1U) != 0 ? DType::f32 : dtype);
      }
      if (auto other = with_types(sample, types)) {
        other->name += " in " + std::string(name_of(dtype));
        found.push_back(*std::move(other));
        break;
      }
    }
  }
  return found;
}

double rounding(const CallSample& sample, const Tensor& result, std::size_t ranks) {
  if (result.dtype() == DType::f64) {
    return 1e-9 * static_cast<double>(ranks);  // far above what rounding does to small samples
  }
  double coarsest = epsilon(result.dtype());
  for (const Tensor& x : sample.inputs) {
    if (x && coarsest > 0) {
      coarsest = std::max(coarsest, epsilon(x.dtype()));
    }
  }
  return 2 * coarsest * (static_cast<double>(ranks) + reduction_length(sample, result.numel()));
}

}  // namespace tessera::conformance
