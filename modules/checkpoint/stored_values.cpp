module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <range/v3/view/zip.hpp>
#include <string>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :chunks;
import :stored_values;

namespace tessera::checkpoint_detail {
namespace {

Dims index_of(std::int64_t position, const Dims& shape) {
  Dims index = Dims::filled(shape.size(), 0);
  for (int d = shape.size() - 1; d >= 0; --d) {
    index[d] = position % shape[d];
    position /= shape[d];
  }
  return index;
}

/// Two stored tensors of one shape, some rows at a time.
void check_same(const TensorSource& from, const std::string& a, const std::string& b) {
  for_each_block(from.info(a).shape, [&](const LocalPart& box) {
    const auto read = [&](const std::string& name) {
      const Tensor values = empty(box.shape, DType::f64);
      from.read(name, box, values);
      return to_doubles(values);
    };
    const std::vector<double> left = read(a);
    const std::vector<double> right = read(b);
    const auto differ = std::ranges::mismatch(
        left, right, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
    if (differ.in1 != left.end()) {
      Dims index = index_of(differ.in1 - left.begin(), box.shape);
      if (index.size() > 0) {
        index[0] += box.offset[0];
      }
      fail_input(
          {.thing = from.path(),
           .wrong = fmt::format("'{}' and '{}' are one tensor in this model (tied embeddings), but "
                                "have different values here (first at {}: {} and {})",
                                a, b, to_string(index), *differ.in1, *differ.in2),
           .advice =
               "for a model that has both, set tie_word_embeddings to false in its config.json"});
    }
  });
}

}  // namespace

void for_each_block(const Dims& shape, const std::function<void(const LocalPart&)>& f) {
  const std::int64_t rows = shape.size() == 0 ? 1 : shape[0];
  const std::int64_t width = rows == 0 ? 1 : std::max<std::int64_t>(1, shape.product() / rows);
  const std::int64_t step = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / width);
  for (std::int64_t row = 0; row < rows; row += step) {
    LocalPart box{Dims::filled(shape.size(), 0), shape};
    if (shape.size() > 0) {
      box.offset[0] = row;
      box.shape[0] = std::min(step, rows - row);
    }
    f(box);
  }
}

void check_finite(const Tensor& checked, const Dims& offset, const std::string& what) {
  const Tensor values = on_host(checked);
  const Tensor x = values.is_contiguous() ? values : empty(values.shape(), values.dtype());
  if (!values.is_contiguous()) {
    ops::copy_(x, values);
  }
  const auto* bytes = static_cast<const std::byte*>(x.raw_data());
  if (all_finite({bytes, static_cast<std::size_t>(x.numel()) * size_of(x.dtype())}, x.dtype())) {
    return;
  }
  const std::vector<double> numbers = to_doubles(x);
  const auto bad = std::ranges::find_if(numbers, [](double y) { return !std::isfinite(y); });
  Dims index = index_of(bad - numbers.begin(), x.shape());
  for (auto [place, first] : ranges::views::zip(index, offset)) {
    place += first;
  }
  fail_input({.thing = what,
              .wrong = fmt::format("element {} is {} as {}", to_string(index),
                                   std::isnan(*bad) ? "nan" : (*bad > 0 ? "inf" : "-inf"),
                                   name_of(x.dtype())),
              .expected = "finite values"});
}

void check_stored_finite(const TensorSource& from, const StateDict& state,
                         const std::string& prefix) {
  for (const auto& [name, tensor] : state.tensors) {
    const std::string stored = prefix + name;
    if (!tensor || !from.contains(stored) || !is_floating(tensor.dtype())) {
      continue;
    }
    for_each_block(from.info(stored).shape, [&](const LocalPart& box) {
      const Tensor values = empty(box.shape, tensor.dtype());
      from.read(stored, box, values);
      check_finite(values, box.offset, fmt::format("{}: tensor '{}'", from.path(), stored));
    });
  }
}

void check_tied(const TensorSource& from, const StateDict& state, const std::string& prefix) {
  std::map<const TensorImpl*, std::string> first;
  for (const auto& [name, tensor] : state.tensors) {
    const std::string stored = prefix + name;
    if (!tensor || !from.contains(stored)) {
      continue;
    }
    if (const auto [at, fresh] = first.emplace(tensor.impl(), stored); !fresh) {
      check_same(from, at->second, stored);
    }
  }
}

}  // namespace tessera::checkpoint_detail
