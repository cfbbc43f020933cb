// How ranks have experts, and their sums on all of them.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.routed;

import :routed_rows;
import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;

namespace tessera::routed {
namespace {

std::size_t last_of(const ExpertLayer& layer) { return layer.matrices.size() - 1; }

/// How experts are distributed: along which axes of several ranks they are split, the outermost one
/// first, and along which ones their features are.
struct ExpertLayout {
  std::vector<int> experts = {};
  std::vector<int> features = {};
};

[[noreturn]] void refuse_layout(const ExpertLayer& layer, std::string wrong, std::string got,
                                std::string advice) {
  fail_input({.thing = "module '" + layer.name + "'",
              .wrong = std::move(wrong),
              .got = std::move(got),
              .advice = std::move(advice)});
}

/// Errors: biases that are not split as their matrices are.
void check_biases(const ExpertLayer& layer, const ExpertLayout& split) {
  for (std::size_t i = 0; i < layer.biases.size(); ++i) {
    const Layout& layout = layer.biases[i].layout();
    Layout expected = Layout::replicated(layout.mesh());
    for (const int axis : split.experts) {
      expected = expected.with_placement(axis, Shard(0));
    }
    for (const int axis : split.features) {
      expected = i < last_of(layer) ? expected.with_placement(axis, Shard(1)) : expected;
    }
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      if (layout.placement(axis) != expected.placement(axis) && layout.mesh().axis_size(axis) > 1) {
        refuse_layout(layer, "its biases are not split as its matrices are", to_string(layout),
                      "split all parameters of the layer by one style");
      }
    }
  }
}

/// Errors: layouts of tokens and matrices that do not go together.
ExpertLayout layout_of(const ExpertLayer& layer, const Tensor& hidden) {
  const Layout tokens = hidden.layout();
  const auto placement = [&](std::size_t matrix, int axis) {
    return layer.matrices[matrix].layout().placement(axis);
  };
  if (tokens.has_partial() || tokens.shards(hidden.dims() - 1)) {
    refuse_layout(layer, "each rank needs whole hidden states", to_string(*hidden.spec()),
                  "use PrepareModuleInput");
  }
  ExpertLayout found;
  for (int axis = 0; axis < tokens.ndim(); ++axis) {
    const Placement first = placement(0, axis);
    const Placement down = placement(last_of(layer), axis);
    const bool same = last_of(layer) == 1 || first == placement(1, axis);
    const bool whole = first.is_replicate() && down.is_replicate();
    if (tokens.mesh().axis_size(axis) == 1 || (same && whole)) {
      continue;
    }
    const bool split = tokens.placement(axis).is_shard();
    if (same && first.is_shard(0) && down.is_shard(0) && split) {
      found.experts.push_back(axis);
    } else if (same && first.is_shard(1) && down.is_shard(2) && !split) {
      found.features.push_back(axis);
    } else {
      refuse_layout(layer, "its experts are split in a way that it cannot compute",
                    "up_proj " + to_string(layer.matrices[last_of(layer) - 1].layout()) +
                        ", down_proj " + to_string(layer.matrices[last_of(layer)].layout()) +
                        ", tokens " + to_string(tokens),
                    "use ExpertParallel on axes along which the batch is split, "
                    "RowwiseParallel on others");
    }
  }
  check_biases(layer, found);
  // Whose part an expert is depends on which axis was applied first.
  const auto outer_first = [&](std::size_t matrix) {
    std::vector<int> axes;
    for (const int axis : layer.matrices[matrix].layout().axes_sharding(0)) {
      if (std::ranges::find(found.experts, axis) != found.experts.end()) {
        axes.push_back(axis);
      }
    }
    return axes;
  };
  found.experts = outer_first(0);
  for (std::size_t matrix = 1; matrix < layer.matrices.size(); ++matrix) {
    if (outer_first(matrix) != found.experts) {
      refuse_layout(layer, "the ranks have different experts' matrices",
                    to_string(layer.matrices[0].layout()) + " and " +
                        to_string(layer.matrices[matrix].layout()),
                    "split all of them along the axes in one order");
    }
  }
  return found;
}

/// The layout with Partial on these axes.
Layout with_partial(Layout layout, std::span<const int> axes) {
  for (const int axis : axes) {
    layout = layout.with_placement(axis, Partial());
  }
  return layout;
}

/// The layout of a matrix's gradient: ranks with other tokens have other terms of it.
Layout gradient_of(const Layout& weights, const Layout& tokens) {
  Layout gradient = weights;
  for (int axis = 0; axis < weights.ndim(); ++axis) {
    if (weights.placement(axis).is_replicate() && tokens.placement(axis).is_shard()) {
      gradient = gradient.with_placement(axis, Partial());
    }
  }
  return gradient;
}

/// The owners of experts that these axes split, the outermost one first, in the order of dim 0.
Owners owners_of(const DeviceMesh& mesh, std::span<const int> axes) {
  Owners owners{ops::GroupArgument::of(mesh.group(axes, current_rank()))};
  for (const int axis : axes) {
    owners.count *= mesh.axis_size(axis);
    owners.axis += (owners.axis.empty() ? "" : "+") + std::string(mesh.axis_name(axis));
  }
  return owners;
}

}  // namespace

Tensor expert_sums(const RoutedRows& rows, const ExpertLayer& layer, const BesideExperts& beside) {
  const Tensor& hidden = rows.hidden;
  LocalExperts::Options options{.experts = layer.matrices[0].size(0)};
  if (!hidden.is_distributed()) {
    return LocalExperts(layer, options, beside).result(rows);
  }
  const Layout tokens = hidden.layout();
  const DeviceMesh& mesh = tokens.mesh();
  const ExpertLayout split = layout_of(layer, hidden);
  if (!split.experts.empty()) {
    if (!shards_evenly(hidden.shape(), tokens)) {
      refuse_layout(layer, "the ranks have different numbers of tokens", to_string(*hidden.spec()),
                    "use a batch that the axes divide");
    }
    options.owners = owners_of(mesh, split.experts);
    const std::int64_t owners = options.owners.count;
    if (options.experts % owners != 0) {
      refuse_layout(
          layer, "its experts cannot be split equally over the ranks of the axes",
          fmt::format("{} experts, {} ranks", options.experts, owners),
          fmt::format("choose axes whose sizes multiply to a divisor of {}", options.experts));
    }
  }
  for (const int axis : split.features) {
    options.adds_bias &= mesh.coordinate_of(current_rank(), axis) == 0;
  }
  // Each rank has some features, so a term of the result and of its inputs' gradients.
  const Layout terms = with_partial(tokens, split.features);
  std::vector<Tensor> all = {hidden, rows.weights, rows.chosen, rows.kept};
  LocalMapOptions map{.in = {tokens, tokens, tokens, rows.kept ? tokens : Layout()},
                      .out = {terms},
                      .in_gradients = {terms, terms, tokens, Layout()},
                      .out_shapes = {hidden.shape()}};
  const auto add = [&](const Tensor& parameter, bool added_once) {
    const Layout gradient = gradient_of(parameter.layout(), tokens);
    all.push_back(parameter);
    map.in.push_back(parameter.layout());
    map.in_gradients.push_back(added_once ? with_partial(gradient, split.features) : gradient);
  };
  for (const Tensor& matrix : layer.matrices) {
    add(matrix, false);
  }
  for (const Tensor& bias : layer.biases) {
    // One of the ranks that share an expert's features adds the bias of its result.
    add(bias, &bias == &layer.biases.back());
  }
  constexpr std::ptrdiff_t first_matrix = 4;
  return local_map(
      [&](std::span<const Tensor> locals) {
        const auto biases =
            locals.begin() + first_matrix + static_cast<std::ptrdiff_t>(layer.matrices.size());
        ExpertLayer own = layer;
        own.matrices.assign(locals.begin() + first_matrix, biases);
        own.biases.assign(biases, locals.end());
        return Tensors{LocalExperts(own, options, beside)
                           .result({locals[0], locals[1], locals[2], locals[3]})};
      },
      all, map)[0];
}

}  // namespace tessera::routed
