module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tessera/visit_dtype.hpp>
#include <type_traits>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

// The value of a distributed tensor, put together from all ranks' parts element by element.
namespace tessera::conformance {
namespace {

/// Some elements of the whole value.
struct Elements {
  std::vector<double> values;
  std::vector<bool> present;
};

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// An integer as the type holds it: it wraps around. Others, and those that a double does not hold
/// exactly, are as they are.
double wrapped(double value, DType dtype) {
  double held = value;
  kernels::visit_stored(dtype, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(std::int64_t) &&
                  !std::is_same_v<T, bool>) {
      held = static_cast<T>(static_cast<std::int64_t>(value));
    }
  });
  return held;
}

double reduced(ReduceOp op, double a, double b, DType dtype) {
  switch (op) {
    case ReduceOp::sum:
      return wrapped(a + b, dtype);
    case ReduceOp::avg:
      return a + b;
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::product:
      return wrapped(a * b, dtype);
  }
  return a;
}

double norm_of(double order, double a, double b) {
  return std::pow(std::pow(std::abs(a), order) + std::pow(std::abs(b), order), 1 / order);
}

Elements placed(const Tensor& part, int rank) {
  const Spec& spec = *part.spec();
  const LocalPart box = local_part(spec.shape, spec.layout, rank);
  if (!(part.local().shape() == box.shape) || part.local().dtype() != spec.dtype) {
    fail("rank " + std::to_string(rank) + " holds " + to_string(part.local().shape()) +
         " where its layout says " + to_string(box.shape));
  }
  const auto count = static_cast<std::size_t>(spec.shape.product());
  Elements elements{std::vector<double>(count), std::vector<bool>(count)};
  const std::vector<double> local = to_doubles(part.local());
  std::size_t next = 0;
  for_each_run(spec.shape, box, [&](std::int64_t first, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) {
      elements.values[static_cast<std::size_t>(first + i)] = local[next++];
      elements.present[static_cast<std::size_t>(first + i)] = true;
    }
  });
  return elements;
}

void combine(Elements& a, const Elements& b, Placement placement, DType dtype) {
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    if (placement.is_shard()) {
      if (a.present[i] && b.present[i]) {
        fail("two shards hold element " + std::to_string(i));
      }
      a.values[i] = b.present[i] ? b.values[i] : a.values[i];
      a.present[i] = a.present[i] || b.present[i];
    } else if (a.present[i] != b.present[i]) {
      fail("ranks along an axis that does not shard hold different elements");
    } else if (placement.is_partial()) {
      a.values[i] = placement.is_norm()
                        ? norm_of(placement.norm_order(), a.values[i], b.values[i])
                        : reduced(placement.reduce_op(), a.values[i], b.values[i], dtype);
    } else if (!same(a.values[i], b.values[i])) {
      fail("replicas differ in element " + std::to_string(i) + ": " + std::to_string(a.values[i]) +
           " and " + std::to_string(b.values[i]));
    }
  }
}

}  // namespace

std::vector<double> whole_value(std::span<const Tensor> parts) {
  const Spec& spec = *parts[0].spec();
  std::vector<Elements> elements;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].spec() != parts[0].spec()) {
      fail("ranks disagree about the layout: " + to_string(spec) + " and " +
           to_string(*parts[rank].spec()));
    }
    elements.push_back(placed(parts[rank], static_cast<int>(rank)));
  }
  const DeviceMesh& mesh = spec.layout.mesh();
  for (int axis = mesh.ndim() - 1; axis >= 0; --axis) {
    // Ranks are row-major: the last axis' ranks are neighbours, and so on after it is combined.
    const auto size = static_cast<std::size_t>(mesh.axis_size(axis));
    const Placement placement = spec.layout.placement(axis);
    std::vector<Elements> combined;
    for (std::size_t i = 0; i < elements.size(); i += size) {
      Elements sum = elements[i];
      for (std::size_t k = 1; k < size; ++k) {
        combine(sum, elements[i + k], placement, spec.dtype);
      }
      if (placement.is_partial() && placement.reduce_op() == ReduceOp::avg) {
        for (double& value : sum.values) {
          value /= static_cast<double>(size);
        }
      }
      combined.push_back(std::move(sum));
    }
    elements = std::move(combined);
  }
  const std::vector<bool>& present = elements[0].present;
  if (std::find(present.begin(), present.end(), false) != present.end()) {
    fail("no rank holds some of the elements");
  }
  return elements[0].values;
}

}  // namespace tessera::conformance
