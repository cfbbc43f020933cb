module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <tessera/printable.hpp>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

namespace tessera {
namespace {

/// The Spec of what is to be made; null on ranks that hold nothing of it.
SpecHandle spec_here(const char* what, const Dims& shape, const Layout& layout, DType dtype,
                     bool has_value) {
  check_layout_fits(layout, shape.size(), what);
  if (has_value && layout.has_partial()) {
    fail({.thing = what,
          .wrong = fmt::format("a tensor cannot be created as {}", to_string(layout)),
          .advice = "create it as Replicate and redistribute it"});
  }
  const SpecHandle spec = Spec::make(layout, shape, dtype);
  return layout.mesh().contains(current_rank()) ? spec : SpecHandle();
}

}  // namespace

Tensor distributed_empty(const Dims& shape, const Layout& layout, DType dtype, Device device) {
  const SpecHandle spec = spec_here("distributed_empty", shape, layout, dtype, false);
  return spec == nullptr ? Tensor()
                         : make_distributed(empty(local_shape(*spec), dtype, device), spec);
}

Tensor distributed_zeros(const Dims& shape, const Layout& layout, DType dtype, Device device) {
  // Zeros are 0 in every layout whose reduction keeps 0: all of them.
  const SpecHandle spec = spec_here("distributed_zeros", shape, layout, dtype, false);
  return spec == nullptr ? Tensor()
                         : make_distributed(zeros(local_shape(*spec), dtype, device), spec);
}

Tensor distributed_ones(const Dims& shape, const Layout& layout, DType dtype, Device device) {
  return distributed_full(shape, 1, layout, dtype, device);
}

Tensor distributed_full(const Dims& shape, double value, const Layout& layout, DType dtype,
                        Device device) {
  const SpecHandle spec = spec_here("distributed_full", shape, layout, dtype, true);
  return spec == nullptr ? Tensor()
                         : make_distributed(full(local_shape(*spec), value, dtype, device), spec);
}

Tensor distributed_uniform(const Dims& shape, double low, double high, const Layout& layout,
                           const RandomSource& source, DType dtype) {
  if (spec_here("distributed_uniform", shape, layout, dtype, true) == nullptr) {
    source.take("distributed_uniform", shape);  // stays in step with the ranks of the mesh
    return {};
  }
  return ops::uniform_(distributed_empty(shape, layout, dtype), low, high, source);
}

Tensor distributed_normal(const Dims& shape, double mean, double deviation, const Layout& layout,
                          const RandomSource& source, DType dtype) {
  if (spec_here("distributed_normal", shape, layout, dtype, true) == nullptr) {
    source.take("distributed_normal", shape);
    return {};
  }
  return ops::normal_(distributed_empty(shape, layout, dtype), mean, deviation, source);
}

Tensor distributed_arange(double start, double end, double step, const Layout& layout,
                          DType dtype) {
  const double count = std::ceil((end - start) / step);
  if (!(step != 0) || !(count >= 0)) {
    fail({.thing = "distributed_arange",
          .wrong = "the step never reaches the end",
          .expected = "a step other than 0 towards the end",
          .got = fmt::format("start {}, end {}, step {}", printable(start), printable(end),
                             printable(step))});
  }
  if (dtype == DType::boolean) {
    fail({.thing = "distributed_arange",
          .wrong = "bool is not supported",
          .advice = "create numbers and compare them"});
  }
  const Dims shape = {checked_integer(count, "distributed_arange")};
  const SpecHandle spec = spec_here("distributed_arange", shape, layout, dtype, true);
  if (spec == nullptr) {
    return {};
  }
  const std::int64_t first = local_offset(*spec)[0];
  // In double: exact for integers up to 2^53, and each element is rounded once.
  const Dims local = local_shape(*spec);
  std::vector<double> values;
  for (std::int64_t i = 0; i < local[0]; ++i) {
    values.push_back(start + step * static_cast<double>(first + i));
  }
  return make_distributed(ops::cast(from_values(std::span<const double>(values), local), dtype),
                          spec);
}

}  // namespace tessera
