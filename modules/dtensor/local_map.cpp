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
    fail({.thing = "local_map",
          .wrong = fmt::format("{} entries in '{}' for {} {}", list.size(), name, count, tensors),
          .expected = "one for each, or none"});
  }
}

Layout entry_of(const std::vector<Layout>& list, std::size_t i) {
  return list.empty() ? Layout() : list[i];
}

Tensor local_input(const Tensor& x, std::size_t i, const LocalMapOptions& options) {
  const Layout entry = entry_of(options.in, i);
  if (!x || !x.is_distributed()) {
    if (entry) {
      fail({.thing = "local_map",
            .wrong = fmt::format("input {} is {}", i, x ? "plain" : "undefined"),
            .expected = fmt::format("a distributed tensor in {}", to_string(entry)),
            .advice = "distribute() it"});
    }
    return x;
  }
  Tensor placed = x;
  if (entry && !(x.layout() == entry)) {
    if (!options.redistribute_inputs) {
      fail({.thing = "local_map",
            .wrong = fmt::format("input {} is {}", i, to_string(*x.spec())),
            .expected = to_string(entry),
            .advice = "redistribute it, or set redistribute_inputs"});
    }
    placed = redistribute(x, entry);
  }
  const Layout gradient = entry_of(options.in_gradients, i);
  try {
    return to_local(placed, gradient ? std::optional(gradient) : std::nullopt);
  } catch (const Error& error) {
    fail({.thing = "local_map", .wrong = fmt::format("input {}: {}", i, error.what())});
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
      const Layout entry = entry_of(options.in, i);
      if (!shards_evenly(inputs[i].shape(), entry ? entry : inputs[i].layout())) {
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
      fail({.thing = "local_map",
            .wrong = fmt::format("the global shape of result {}, which is sharded, is unknown "
                                 "because input {} is sharded unevenly",
                                 i, uneven),
            .advice = "pass out_shapes"});
    }
    const auto shape =
        options.out_shapes.empty() ? std::nullopt : std::optional(options.out_shapes[i]);
    try {
      results[i] = from_local(results[i], layout, shape);
    } catch (const Error& error) {
      fail({.thing = "local_map", .wrong = fmt::format("result {}: {}", i, error.what())});
    }
  }
  return results;
}

}  // namespace tessera
