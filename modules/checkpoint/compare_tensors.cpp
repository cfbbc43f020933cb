module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :compare_tensors;
import :stored_values;

namespace tessera {
namespace {

std::set<std::string> names_of(const TensorSource& source, const std::string& prefix) {
  std::set<std::string> names;
  for (const auto& [name, info] : source.tensors()) {
    if (name.starts_with(prefix)) {
      names.insert(name.substr(prefix.size()));
    }
  }
  return names;
}

std::vector<double> values_of(const TensorSource& source, const std::string& name,
                              const LocalPart& box, DType dtype) {
  const Tensor values = empty(box.shape, dtype);
  source.read(name, box, values);
  return to_doubles(values);
}

void compare_values(TensorDifference& difference, double x, double y) {
  if (x == y || (std::isnan(x) && std::isnan(y))) {
    return;
  }
  ++difference.elements;
  const double apart = std::abs(x - y);
  const bool finite = std::isfinite(apart);
  const double infinite = std::numeric_limits<double>::infinity();
  difference.max_absolute = std::max(difference.max_absolute, finite ? apart : infinite);
  difference.max_relative = std::max(
      difference.max_relative, finite ? apart / std::max(std::abs(x), std::abs(y)) : infinite);
}

}  // namespace

std::vector<TensorDifference> compare_tensors(const TensorSource& first, const TensorSource& second,
                                              const CompareOptions& options) {
  const std::set<std::string> left = names_of(first, options.first_prefix);
  const std::set<std::string> right = names_of(second, options.second_prefix);
  std::set<std::string> names = left;
  names.insert(right.begin(), right.end());
  std::vector<TensorDifference> differences;
  for (const std::string& name : names) {
    TensorDifference difference{.name = name};
    if (!left.contains(name) || !right.contains(name)) {
      difference.problem = left.contains(name) ? "only in the first" : "only in the second";
      differences.push_back(std::move(difference));
      continue;
    }
    const std::string x_name = options.first_prefix + name;
    const std::string y_name = options.second_prefix + name;
    const TensorInfo& x = first.info(x_name);
    const TensorInfo& y = second.info(y_name);
    const std::string types = fmt::format("{} and {}", name_of(x.dtype), name_of(y.dtype));
    if (!(x.shape == y.shape)) {
      difference.problem = fmt::format("shape {} and {}", to_string(x.shape), to_string(y.shape));
    } else if (x.dtype != y.dtype && !can_cast(x.dtype, y.dtype)) {
      difference.problem = types;
    } else {
      difference.types = x.dtype == y.dtype ? std::string() : types;
      checkpoint_detail::for_each_block(x.shape, [&](const LocalPart& box) {
        const DType as = is_floating(x.dtype) ? DType::f64 : x.dtype;
        const std::vector<double> ours = values_of(first, x_name, box, as);
        const std::vector<double> theirs = values_of(second, y_name, box, as);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          compare_values(difference, ours[i], theirs[i]);
        }
      });
    }
    if (!difference.problem.empty() || !difference.types.empty() || difference.elements > 0) {
      differences.push_back(std::move(difference));
    }
  }
  return differences;
}

}  // namespace tessera
