module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;

// Which placements are tried, and operands that are placed so.
namespace tessera::conformance {
namespace {

std::vector<Placement> choices(const Tensor& x, std::span<const Placement> others) {
  std::vector<Placement> all{Replicate()};
  if (x) {
    for (int d = 0; d < x.dims(); ++d) {
      all.push_back(Shard(d));
    }
    if (is_floating(x.dtype())) {
      all.insert(all.end(), others.begin(), others.end());
    }
  }
  return all;
}

bool has_negative(const Tensor& x) {
  const std::vector<double> values = x ? to_doubles(x) : std::vector<double>();
  return std::any_of(values.begin(), values.end(), [](double value) { return !(value >= 0); });
}

/// All combinations, the last operand's choices fastest.
void combine(const std::vector<std::vector<Placement>>& choices, std::vector<Placements>& into) {
  Placements chosen;
  const std::function<void()> extend = [&] {
    if (chosen.size() == choices.size()) {
      if (std::find(into.begin(), into.end(), chosen) == into.end()) {
        into.push_back(chosen);
      }
      return;
    }
    for (const Placement p : choices[chosen.size()]) {
      chosen.push_back(p);
      extend();
      chosen.pop_back();
    }
  };
  extend();
}

/// A number for each element and place that looks random, exact in binary, about -1 to 1, not 0.
double noise(std::int64_t element, std::int64_t place) {
  const std::uint64_t bits =
      hash_combine(static_cast<std::uint64_t>(element) + 17, static_cast<std::uint64_t>(place) + 5);
  return (static_cast<double>(bits % 32) - 15.5) / 16;
}

/// The term of `value` that index `index` of `size` along one axis holds.
double term(double value, Placement partial, std::int64_t element, int index, int size) {
  const auto owner = static_cast<int>(element % size);
  if (partial.is_norm()) {
    // One rank has half of the sum of powers, the others have the other half.
    const double share = size == 1 ? 1 : index == owner ? 0.5 : 0.5 / (size - 1);
    return value * std::pow(share, 1 / partial.norm_order());
  }
  const ReduceOp op = partial.reduce_op();
  switch (op) {
    case ReduceOp::avg:
    case ReduceOp::sum: {
      const double whole = op == ReduceOp::avg ? value * size : value;
      if (index > 0) {
        return noise(element, index);
      }
      double rest = whole;
      for (int i = 1; i < size; ++i) {
        rest -= noise(element, i);
      }
      return rest;
    }
    case ReduceOp::max:
      return index == owner ? value : value - std::abs(noise(element, index));
    case ReduceOp::min:
      return index == owner ? value : value + std::abs(noise(element, index));
    case ReduceOp::product:
      return index == owner ? value * std::exp2(size - 1) : 0.5;
  }
  return value;
}

/// Whether each placement is one of those that are to be tried.
bool fits(const Placements& placements, std::span<const std::vector<Placement>> each) {
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (std::find(each[i].begin(), each[i].end(), placements[i]) == each[i].end()) {
      return false;
    }
  }
  return placements.size() == each.size();
}

}  // namespace

Strategies strategies_of(const CallSample& sample) {
  const Op& op = *sample.op;
  const Call call{op, sample.inputs, sample.attributes};
  ResultShapes results;
  if (op.infer != nullptr) {
    op.infer(call, results);
  } else {
    results.push_back({sample.inputs[0].shape(), sample.inputs[0].dtype()});
  }
  const RuleContext context{call, results, 0, 2, [](std::size_t, int) { return std::int64_t{2}; }};
  Strategies all;
  if (op.rule != nullptr) {
    op.rule(context, all);
  }
  return all;
}

std::vector<Placements> axis_placements(const CallSample& sample, std::size_t most) {
  std::vector<Placements> accepted;
  try {
    for (const Strategy& s : strategies_of(sample)) {
      accepted.emplace_back(s.in.begin(), s.in.end());
    }
  } catch (const Error&) {
    accepted.clear();  // a rule that fails is found by the calls
  }
  if (sample.op->counts.lists > 1) {
    // Lists follow the layouts of the first one, which plain tensors do not have: all in one way.
    int dims = 0;
    for (const Tensor& x : sample.inputs) {
      dims = std::max(dims, x ? x.dims() : 0);
    }
    for (int d = 0; d < dims; ++d) {
      Placements& alike = accepted.emplace_back();
      for (const Tensor& x : sample.inputs) {
        alike.push_back(x && d < x.dims() ? Shard(d) : Replicate());
      }
    }
  }
  std::mt19937 random(1);
  const auto select = [&](std::vector<Placements>& some, std::size_t count) {
    if (some.size() > count) {
      std::shuffle(some.begin(), some.end(), random);
      std::partition(some.begin(), some.end(), [&](const Placements& p) {
        return std::find(accepted.begin(), accepted.end(), p) != accepted.end();
      });
      some.resize(count);
    }
  };
  const auto with = [&](std::span<const Placement> partial, bool sharded,
                        std::vector<Placements>& into) {
    std::vector<std::vector<Placement>> each;
    for (const Tensor& x : sample.inputs) {
      each.push_back(choices(x, partial));
      if (!sharded) {
        std::erase_if(each.back(), [](Placement p) { return p.is_shard(); });
      }
    }
    const double count =
        std::accumulate(each.begin(), each.end(), 1.0, [](double product, const auto& some) {
          return product * static_cast<double>(some.size());
        });
    if (count <= 4'000) {
      combine(each, into);
      return;
    }
    // Too many to write down: what the rule accepts, and as many drawn as may be asked for.
    for (const Placements& p : accepted) {
      if (fits(p, each)) {
        into.push_back(p);
      }
    }
    for (std::size_t i = 0; i < 2 * most; ++i) {
      Placements& drawn = into.emplace_back();
      for (const std::vector<Placement>& some : each) {
        drawn.push_back(some[random() % some.size()]);
      }
    }
  };
  std::vector<Placements> all;
  const Placement sum[] = {Partial()};
  with(sum, true, all);
  select(all, most);
  std::vector<Placements> others;
  for (const ReduceOp op : {ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
    const Placement other[] = {Partial(op)};
    with(other, false, others);
  }
  if (std::none_of(sample.inputs.begin(), sample.inputs.end(), has_negative)) {
    const Placement norm[] = {NormPartial(2)};
    with(norm, false, others);
  }
  select(others, most / 3);
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

Layouts one_axis_layouts(const DeviceMesh& mesh, const CallSample& sample,
                         const Placements& placements) {
  Layouts layouts;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    layouts.push_back(sample.inputs[i] ? Layout::make(mesh, {placements[i]}) : Layout());
  }
  return layouts;
}

std::vector<Layouts> grid_layouts(const DeviceMesh& mesh, std::span<const Placements> all,
                                  std::span<const Placements> likely, const Extent& extent) {
  std::vector<Layouts> result;
  // Placements that are right on one axis are tried on all of them at once: extents that divide by
  // each axis need not divide by all.
  std::vector<Placements> same;
  for (const Placements& each : likely) {
    const bool cuts =
        std::any_of(each.begin(), each.end(), [](Placement p) { return p.is_shard(); });
    if (cuts && same.size() < extent.same_on_all_axes &&
        std::find(same.begin(), same.end(), each) == same.end()) {
      same.push_back(each);
    }
  }
  for (const Placements& each : same) {
    Layouts layouts;
    for (const Placement p : each) {
      layouts.push_back(
          Layout::make(mesh, std::vector<Placement>(static_cast<std::size_t>(mesh.ndim()), p)));
    }
    result.push_back(std::move(layouts));
  }
  std::mt19937 random(2);
  const auto draw = [&]() -> const Placements& {
    const auto from = !likely.empty() && random() % 4 != 0 ? likely : all;
    return from[random() % from.size()];
  };
  std::vector<int> order(static_cast<std::size_t>(mesh.ndim()));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t n = 0; n < extent.grid_cases; ++n) {
    std::vector<const Placements*> axes;
    axes.reserve(order.size());
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      axes.push_back(&draw());
    }
    std::shuffle(order.begin(), order.end(), random);
    Layouts layouts;
    for (std::size_t i = 0; i < axes[0]->size(); ++i) {
      std::vector<Placement> placements;
      placements.reserve(axes.size());
      for (const Placements* axis : axes) {
        placements.push_back((*axis)[i]);
      }
      layouts.push_back(Layout::make(mesh, placements, order));
    }
    result.push_back(std::move(layouts));
  }
  return result;
}

Tensor make_operand(const Tensor& whole, const Layout& layout) {
  const NoGrad constant;
  Layout cut = layout;
  Tensor x = ops::clone(whole);
  const Dims coordinates = my_coordinates(layout.mesh());
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const Placement p = layout.placement(axis);
    if (!p.is_partial()) {
      continue;
    }
    cut = cut.with_placement(axis, Replicate());
    x = ops::cast(x, DType::f64);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      double& value = x.data<double>()[i];
      value = term(value, p, i, static_cast<int>(coordinates[axis]), layout.mesh().axis_size(axis));
    }
  }
  x = ops::cast(x, whole.dtype());
  return make_distributed(distribute(x, cut).local(),
                          Spec::make(layout, whole.shape(), whole.dtype()));
}

}  // namespace tessera::conformance
