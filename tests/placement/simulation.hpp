// Carries out redistribution steps on plain arrays of all ranks at once: what the tests compare
// plans with. It knows what each step means and nothing of how plans are made.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace simulation {

using tessera::DeviceMesh;
using tessera::Dims;
using tessera::Layout;
using tessera::LocalStep;
using tessera::Placement;
using tessera::ReduceOp;
using tessera::Step;
using tessera::collective::CallKind;

struct Array {
  Dims shape;
  std::vector<double> values;
  friend bool operator==(const Array&, const Array&) = default;
};

/// Calls f(index, row-major number) for every element.
template <class F>
void for_each_index(const Dims& shape, F&& f) {
  Dims index = Dims::filled(shape.size(), 0);
  for (std::int64_t i = 0, n = shape.product(); i < n; ++i) {
    f(index, static_cast<std::size_t>(i));
    for (int d = shape.size() - 1; d >= 0 && ++index[d] == shape[d]; --d) {
      index[d] = 0;
    }
  }
}

inline std::size_t number_of(const Dims& index, const Dims& shape) {
  std::int64_t n = 0;
  for (int d = 0; d < shape.size(); ++d) {
    n = n * shape[d] + index[d];
  }
  return static_cast<std::size_t>(n);
}

/// Chunk `which` of `shards` of an array along a dim, as torch.chunk cuts.
inline Array chunk(const Array& whole, int dim, std::int64_t shards, std::int64_t which) {
  const std::int64_t length = whole.shape[dim];
  const std::int64_t piece = (length + shards - 1) / shards;
  Array own;
  own.shape = whole.shape;
  own.shape[dim] = 0;
  for (std::int64_t i = 0; i < length; ++i) {
    own.shape[dim] += i / piece == which ? 1 : 0;
  }
  own.values.resize(static_cast<std::size_t>(own.shape.product()));
  for_each_index(own.shape, [&](Dims index, std::size_t n) {
    index[dim] += which * piece;
    own.values[n] = whole.values[number_of(index, whole.shape)];
  });
  return own;
}

inline Array join(const std::vector<Array>& pieces, int dim) {
  Array whole;
  whole.shape = pieces.front().shape;
  whole.shape[dim] = 0;
  for (const Array& piece : pieces) {
    whole.shape[dim] += piece.shape[dim];
  }
  whole.values.resize(static_cast<std::size_t>(whole.shape.product()));
  std::int64_t at = 0;
  for (const Array& piece : pieces) {
    for_each_index(piece.shape, [&](Dims index, std::size_t n) {
      index[dim] += at;
      whole.values[number_of(index, whole.shape)] = piece.values[n];
    });
    at += piece.shape[dim];
  }
  return whole;
}

/// Of norms of `order`, if that is not 0: their norm.
inline Array reduce(const std::vector<Array>& terms, ReduceOp op, double order = 0) {
  Array result = terms.front();
  if (order != 0) {
    for (std::size_t i = 0; i < result.values.size(); ++i) {
      double sum = 0;
      for (const Array& term : terms) {
        sum += std::pow(std::abs(term.values.at(i)), order);
      }
      result.values[i] = std::pow(sum, 1 / order);
    }
    return result;
  }
  for (std::size_t t = 1; t < terms.size(); ++t) {
    for (std::size_t i = 0; i < result.values.size(); ++i) {
      double& value = result.values[i];
      const double term = terms[t].values.at(i);
      switch (op) {
        case ReduceOp::sum:
        case ReduceOp::avg:
          value += term;
          break;
        case ReduceOp::max:
          value = std::max(value, term);
          break;
        case ReduceOp::min:
          value = std::min(value, term);
          break;
        case ReduceOp::product:
          value *= term;
          break;
      }
    }
  }
  if (op == ReduceOp::avg) {
    for (double& value : result.values) {
      value /= static_cast<double>(terms.size());
    }
  }
  return result;
}

/// What member `c` of a group holds after the step; `held` is what each member held before.
inline Array after_step(const Step& step, const std::vector<Array>& held, std::size_t c) {
  const auto shards = static_cast<std::int64_t>(held.size());
  const auto own = static_cast<std::int64_t>(c);
  if (step.kind == LocalStep::slice) {
    return chunk(held[c], step.to_dim, shards, own);
  }
  if (step.kind == CallKind::all_gather) {
    return join(held, step.from_dim);
  }
  if (step.kind == CallKind::all_reduce) {
    return reduce(held, step.op, norm_order(step));
  }
  if (step.kind == CallKind::reduce_scatter) {
    return chunk(reduce(held, step.op, norm_order(step)), step.to_dim, shards, own);
  }
  if (step.kind == CallKind::all_to_all) {
    std::vector<Array> received;
    received.reserve(held.size());
    for (const Array& other : held) {
      received.push_back(chunk(other, step.to_dim, shards, own));
    }
    return join(received, step.from_dim);
  }
  Array result = held[c];
  if (step.kind == LocalStep::keep_first && c != 0) {
    std::fill(result.values.begin(), result.values.end(), step.op == ReduceOp::product ? 1.0 : 0.0);
  }
  if (step.kind == LocalStep::pad) {
    std::vector<Array> zeros = held;
    for (std::size_t other = 0; other < held.size(); ++other) {
      if (other != c) {
        std::fill(zeros[other].values.begin(), zeros[other].values.end(), 0.0);
      }
    }
    return join(zeros, step.from_dim);
  }
  return result;  // relabelled; see exchange() for that
}

/// What a rank of a group holds after an exchange: each element from a member that had it.
inline Array exchange(const Step& step, const Dims& shape, std::span<const int> group,
                      const std::vector<Array>& held, int rank) {
  const tessera::LocalPart wanted = tessera::local_part(shape, step.after, rank);
  Array result{wanted.shape,
               std::vector<double>(static_cast<std::size_t>(wanted.shape.product()), -1e9)};
  for (std::size_t member = 0; member < group.size(); ++member) {
    const tessera::LocalPart part = tessera::local_part(shape, step.before, group[member]);
    for_each_index(wanted.shape, [&](Dims index, std::size_t n) {
      bool inside = true;
      for (int d = 0; d < shape.size(); ++d) {
        index[d] += wanted.offset[d] - part.offset[d];
        inside &= index[d] >= 0 && index[d] < part.shape[d];
      }
      if (inside) {
        result.values[n] = held[member].values[number_of(index, part.shape)];
      }
    });
  }
  return result;
}

/// All ranks' arrays, by position in the mesh, after a step on a tensor of this shape.
inline std::vector<Array> execute(const Step& step, const DeviceMesh& mesh,
                                  const std::vector<Array>& before, const Dims& shape) {
  std::vector<Array> after;
  for (const int rank : mesh.ranks()) {
    std::vector<Array> held;
    const std::span<const int> group = mesh.group(step.axes, rank);
    for (const int member : group) {
      held.push_back(before[static_cast<std::size_t>(mesh.position_of(member))]);
    }
    const auto own =
        static_cast<std::size_t>(std::find(group.begin(), group.end(), rank) - group.begin());
    after.push_back(step.kind.is_exchange() ? exchange(step, shape, group, held, rank)
                                            : after_step(step, held, own));
    if (step.kind == LocalStep::keep_first && step.op == ReduceOp::product && own != 0) {
      // Terms of sums and norms that are formed before: one rank's is 1, the others' are 0.
      for (int axis = 0; axis < step.axes[0]; ++axis) {
        const Placement other = step.before.placement(axis);
        if ((other == tessera::Partial() || other.is_norm()) &&
            mesh.coordinate_of(rank, axis) > 0) {
          std::fill(after.back().values.begin(), after.back().values.end(), 0.0);
        }
      }
    }
  }
  return after;
}

/// Cuts a global array as a layout says, dim by dim in the order of its axes.
inline Array cut(const Array& global, const Layout& layout, const Dims& at) {
  Array own = global;
  for (int dim = 0; dim < global.shape.size(); ++dim) {
    for (const int axis : layout.axes_sharding(dim)) {
      own = chunk(own, dim, layout.mesh().axis_size(axis), at[axis]);
    }
  }
  return own;
}

/// Reduces the Partial axes of all ranks' arrays, by increasing axis; all members of a group then
/// hold the result.
inline std::vector<Array> reduce_partials(const Layout& layout, std::vector<Array> held) {
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).is_partial()) {
      Step step;
      step.kind = CallKind::all_reduce;
      step.axes = {axis};
      step.op = layout.placement(axis).reduce_op();
      step.before = layout;
      step.after = layout.with_placement(axis, tessera::Replicate());
      held = execute(step, layout.mesh(), held, {});
    }
  }
  return held;
}

/// Equal but for the rounding of roots.
inline bool near(const Array& a, const Array& b) {
  bool equal = a.shape == b.shape && a.values.size() == b.values.size();
  for (std::size_t i = 0; equal && i < a.values.size(); ++i) {
    equal = std::abs(a.values[i] - b.values[i]) <= 1e-9 * std::max(1.0, std::abs(b.values[i]));
  }
  return equal;
}

/// Whether a value can be brought from one layout to the other: not to a norm's terms.
inline bool is_possible(const Layout& from, const Layout& to) {
  for (int axis = 0; axis < to.ndim(); ++axis) {
    if (to.placement(axis).is_norm() && to.placement(axis) != from.placement(axis)) {
      return false;
    }
  }
  return true;
}

/// A layout by the texts of its placements.
inline Layout layout_of(const DeviceMesh& mesh, const std::vector<std::string>& placements,
                        const std::vector<int>& order) {
  std::vector<Placement> parsed;
  for (const std::string& placement : placements) {
    parsed.push_back(tessera::parse_placement(placement));
  }
  return Layout::make(mesh, parsed, order);
}

/// All layouts of a mesh with these placements, in all shard orders.
inline std::vector<Layout> all_layouts(const DeviceMesh& mesh, std::span<const Placement> kinds) {
  std::vector<std::vector<Placement>> lists = {{}};
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    std::vector<std::vector<Placement>> longer;
    for (const auto& list : lists) {
      for (const Placement kind : kinds) {
        longer.push_back(list);
        longer.back().push_back(kind);
      }
    }
    lists = std::move(longer);
  }
  std::vector<Layout> layouts;
  std::vector<int> order(static_cast<std::size_t>(mesh.ndim()));
  std::iota(order.begin(), order.end(), 0);
  do {
    for (const auto& list : lists) {
      const Layout layout = Layout::make(mesh, list, order);
      if (std::find(layouts.begin(), layouts.end(), layout) == layouts.end()) {
        layouts.push_back(layout);
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return layouts;
}

/// What all ranks hold of a tensor whose value is unknown but fixed: on Partial axes each
/// coordinate has terms of its own. Multiples of 144, so that averages over 2, 3 and 4 are exact.
/// Where some are norms, none is below 0.
inline std::vector<Array> some_locals(const Layout& layout, const Dims& shape) {
  std::vector<Array> held;
  const bool norms = std::ranges::any_of(layout.placements(),
                                         [](Placement placement) { return placement.is_norm(); });
  for (const int rank : layout.mesh().ranks()) {
    const Dims at = *layout.mesh().coordinates_of(rank);
    std::uint64_t seed = 7;
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      const bool partial = layout.placement(axis).is_partial();
      seed = tessera::hash_combine(seed, partial ? static_cast<std::uint64_t>(at[axis]) : 0);
    }
    Array global{shape, std::vector<double>(static_cast<std::size_t>(shape.product()))};
    for (double& value : global.values) {
      seed = tessera::hash_combine(seed, 1);
      value = 144.0 * (static_cast<double>(seed % 9) - 4.0);
      value = norms ? std::abs(value) : value;
    }
    held.push_back(cut(global, layout, at));
  }
  return held;
}

/// The tensor that all ranks' arrays stand for.
inline Array value_of(const Layout& layout, const std::vector<Array>& held, const Dims& shape) {
  const std::vector<Array> whole = reduce_partials(layout, held);
  Array global{shape, std::vector<double>(static_cast<std::size_t>(shape.product()), -1e9)};
  std::size_t position = 0;
  for (const int rank : layout.mesh().ranks()) {
    const tessera::LocalPart part = tessera::local_part(shape, layout, rank);
    const Array& own = whole[position++];
    REQUIRE(own.shape == part.shape);
    std::size_t next = 0;
    tessera::for_each_run(shape, part, [&](std::int64_t first, std::int64_t length) {
      for (std::int64_t i = 0; i < length; ++i) {
        global.values[static_cast<std::size_t>(first + i)] = own.values[next++];
      }
    });
  }
  return global;
}

}  // namespace simulation
