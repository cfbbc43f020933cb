module;
#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera {
namespace {

template <class T>
void check_count(const std::vector<T>& list, std::size_t count, const char* name,
                 const char* tensors) {
  if (!list.empty() && list.size() != count) {
    fail(fmt::format("local_map: {} entries in '{}' for {} {} (expected one for each, or none)",
                     list.size(), name, count, tensors));
  }
}

Layout entry_of(const std::vector<Layout>& list, std::size_t i) {
  return list.empty() ? Layout() : list[i];
}

Tensor local_input(const Tensor& x, std::size_t i, const LocalMapOptions& options) {
  const Layout wanted = entry_of(options.in, i);
  if (!x || !x.is_distributed()) {
    if (wanted) {
      fail(fmt::format(
          "local_map: input {} is {} (expected a distributed tensor in {}); distribute() it", i,
          x ? "plain" : "undefined", to_string(wanted)));
    }
    return x;
  }
  Tensor placed = x;
  if (wanted && !(x.layout() == wanted)) {
    if (!options.redistribute_inputs) {
      fail(fmt::format(
          "local_map: input {} is {} (expected {}); redistribute it, or set redistribute_inputs", i,
          to_string(*x.spec()), to_string(wanted)));
    }
    placed = redistribute(x, wanted);
  }
  const Layout gradient = entry_of(options.in_gradients, i);
  try {
    return to_local(placed, gradient ? std::optional(gradient) : std::nullopt);
  } catch (const Error& error) {
    fail(fmt::format("local_map: input {}: {}", i, error.what()));
  }
}

}  // namespace

Tensors local_map(const LocalFunction& function, std::span<const Tensor> inputs,
                  const LocalMapOptions& options) {
  check_count(options.in, inputs.size(), "in", "inputs");
  check_count(options.in_gradients, inputs.size(), "in_gradients", "inputs");
  Tensors locals;
  std::size_t uneven = inputs.size();  // an input whose ranks hold parts of different shapes
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    locals.push_back(local_input(inputs[i], i, options));
    if (inputs[i] && inputs[i].is_distributed()) {
      const Layout wanted = entry_of(options.in, i);
      if (!shards_evenly(inputs[i].shape(), wanted ? wanted : inputs[i].layout())) {
        uneven = i;
      }
    }
  }
  Tensors results = function(locals);
  check_count(options.out, results.size(), "out", "results");
  check_count(options.out_shapes, results.size(), "out_shapes", "results");
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Layout layout = entry_of(options.out, i);
    if (!layout || !results[i]) {
      continue;
    }
    if (options.out_shapes.empty() && layout.has_shard() && uneven < inputs.size()) {
      fail(
          fmt::format("local_map: the global shape of result {}, which is sharded, is unknown "
                      "because input {} is sharded unevenly; pass out_shapes",
                      i, uneven));
    }
    const auto shape =
        options.out_shapes.empty() ? std::nullopt : std::optional(options.out_shapes[i]);
    try {
      results[i] = from_local(results[i], layout, shape);
    } catch (const Error& error) {
      fail(fmt::format("local_map: result {}: {}", i, error.what()));
    }
  }
  return results;
}

}  // namespace tessera
