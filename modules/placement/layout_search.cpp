module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;

// Dijkstra's search over layouts. An edge changes the placement of one mesh axis, or of several by
// one collective of their flattened group.
namespace tessera {

namespace {

/// Whether the reductions of two Partials may change places.
bool commute(Placement a, Placement b) {
  const auto linear = [](Placement p) { return p == Partial() || p == Partial(ReduceOp::avg); };
  return a == b || (linear(a) && linear(b));
}

class Search {
 public:
  Search(const Layout& from, const Layout& to, const Dims& shape, std::size_t element_size)
      : from_(from),
        to_(to),
        shape_(shape),
        element_size_(static_cast<std::int64_t>(element_size)) {
    for (int axis = 0; axis < from.ndim(); ++axis) {
      may_change_.push_back(!stays(axis));
    }
    collect_dims();
  }

  std::vector<Step> run() {
    best_[from_] = {0, std::nullopt};
    queue_.push({0, 0, from_});
    while (!queue_.empty()) {
      const Entry entry = queue_.top();
      queue_.pop();
      if (entry.layout == to_) {
        break;
      }
      if (entry.cost > best_.at(entry.layout).cost) {
        continue;  // a cheaper way was found after this entry was made
      }
      for (int axis = 0; axis < from_.ndim(); ++axis) {
        if (may_change_[static_cast<std::size_t>(axis)]) {
          expand(entry, axis);
        }
      }
      gather_several(entry);
      reduce_several(entry);
      scatter_several(entry);
      exchange(entry);
    }
    std::vector<Step> steps;
    for (Layout at = to_; !(at == from_);) {
      const auto found = best_.find(at);
      require(found != best_.end(), "redistribute: no sequence of steps reaches the layout");
      steps.push_back(*found->second.last);
      at = steps.back().before;
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

 private:
  using Axes = InlineVector<int, 4>;
  struct ReachedLayout {
    double cost = 0;
    std::optional<Step> last;  // none for the beginning
  };
  struct Entry {
    double cost;
    std::uint64_t number;  // of insertion: ties end the same way on every rank
    Layout layout;
    bool operator<(const Entry& other) const {  // the largest comes first
      return cost != other.cost ? cost > other.cost : number > other.number;
    }
  };

  /// Whether the axis keeps its placement and is in nobody's way: then no plan touches it.
  bool stays(int axis) const {
    const Placement placement = from_.placement(axis);
    if (placement != to_.placement(axis)) {
      return false;
    }
    if (placement.is_replicate()) {
      return true;
    }
    if (placement.is_partial()) {
      return std::ranges::all_of(from_.placements(), [&](Placement p) {
        return !p.is_partial() || commute(p, placement);
      });
    }
    // A shard stays when the same cuts come before it.
    return cuts_before(from_, axis) == cuts_before(to_, axis);
  }

  static std::vector<int> cuts_before(const Layout& layout, int axis) {
    std::vector<int> cuts;
    for (const int other : layout.axes_sharding(layout.placement(axis).dim())) {
      if (other == axis) {
        break;
      }
      if (layout.mesh().axis_size(other) > 1) {
        cuts.push_back(other);
      }
    }
    return cuts;
  }

  /// The dims on which a shard may lie on the way: those sharded at either end and, where axes
  /// meet on one dim, all others too, since a shard may have to step aside.
  void collect_dims() {
    bool meet = false;
    for (int dim = 0; dim < shape_.size(); ++dim) {
      meet |= from_.axes_sharding(dim).size() > 1 || to_.axes_sharding(dim).size() > 1;
    }
    for (int dim = 0; dim < shape_.size(); ++dim) {
      if (meet || from_.shards(dim) || to_.shards(dim)) {
        dims_.push_back(dim);
      }
    }
  }

  void expand(const Entry& entry, int axis) {
    const Layout& at = entry.layout;
    const Placement now = at.placement(axis);
    const Placement target = to_.placement(axis);
    if (at.mesh().axis_size(axis) == 1) {
      offer(entry, StepKind::relabel, {axis}, target);
      return;
    }
    if (now.is_replicate()) {
      for (const int dim : dims_) {
        offer(entry, StepKind::slice, {axis}, Shard(dim));
      }
      if (target.is_partial()) {
        const bool zeros = target.reduce_op() == ReduceOp::sum;  // a norm's too
        const bool ones = target.reduce_op() == ReduceOp::product;
        offer(entry, zeros || ones ? StepKind::keep_first : StepKind::relabel, {axis}, target);
      }
    } else if (now.is_shard()) {
      if (!at.is_innermost(axis)) {
        return;
      }
      offer(entry, StepKind::all_gather, {axis}, Replicate());
      for (const int dim : dims_) {
        if (dim != now.dim()) {
          offer(entry, StepKind::all_to_all, {axis}, Shard(dim));
        }
      }
      if (target == Partial(ReduceOp::sum)) {
        offer(entry, StepKind::pad, {axis}, target);
      }
    } else if (is_next_reduced(at, axis)) {
      offer(entry, StepKind::all_reduce, {axis}, Replicate());
      for (const int dim : dims_) {
        offer(entry, StepKind::reduce_scatter, {axis}, Shard(dim));
      }
    }
  }

  /// Whether no Partial of a smaller axis has to be reduced before this one.
  static bool is_next_reduced(const Layout& at, int axis) {
    for (int other = 0; other < axis; ++other) {
      const Placement placement = at.placement(other);
      if (placement.is_partial() && at.mesh().axis_size(other) > 1 &&
          !commute(placement, at.placement(axis))) {
        return false;
      }
    }
    return true;
  }

  bool changes(int axis) const {
    return may_change_[static_cast<std::size_t>(axis)] && from_.mesh().axis_size(axis) > 1;
  }

  /// Whether cutting the dim by all its axes in turn is cutting it once into so many chunks.
  bool is_even(const Layout& layout, int dim) const {
    return shape_[dim] % layout.shard_count(dim) == 0;
  }

  /// The innermost cuts of a dim are gathered at once.
  void gather_several(const Entry& entry) {
    for (int dim = 0; dim < shape_.size(); ++dim) {
      if (!is_even(entry.layout, dim)) {
        continue;
      }
      Axes suffix;
      const auto cuts = entry.layout.axes_sharding(dim);
      for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
        if (from_.mesh().axis_size(*cut) == 1) {
          continue;
        }
        if (!changes(*cut)) {
          break;
        }
        suffix.emplace_back(*cut);
        if (suffix.size() > 1) {
          Axes outermost_first(suffix.size());
          std::reverse_copy(suffix.begin(), suffix.end(), outermost_first.begin());
          offer(entry, StepKind::all_gather, outermost_first, Replicate());
        }
      }
    }
  }

  /// Partials of one operation are reduced at once: all of them, or any that there are few of.
  void reduce_several(const Entry& entry) {
    const Layout& at = entry.layout;
    for (int first = 0; first < at.ndim(); ++first) {
      if (!at.placement(first).is_partial()) {
        continue;
      }
      Axes axes;  // those of the first one's operation; none if an earlier one has it
      for (int axis = 0; axis < at.ndim(); ++axis) {
        if (at.placement(axis) != at.placement(first)) {
          continue;
        }
        if (axis < first) {
          break;
        }
        if (changes(axis) && is_next_reduced(at, axis)) {
          axes.emplace_back(axis);
        }
      }
      constexpr std::size_t few = 4;
      const unsigned all = (1U << axes.size()) - 1;
      for (unsigned chosen = axes.size() > few ? all : 0; chosen <= all; ++chosen) {
        Axes some;
        for (std::size_t i = 0; i < axes.size(); ++i) {
          if ((chosen >> i & 1U) != 0) {
            some.push_back(axes[i]);
          }
        }
        if (some.size() > 1) {
          offer(entry, StepKind::all_reduce, some, Replicate());
        }
      }
    }
  }

  /// Partials that the target shards on one dim, as its innermost cuts, are reduced and cut at
  /// once, in the target's order.
  void scatter_several(const Entry& entry) {
    const Layout& at = entry.layout;
    for (int dim = 0; dim < shape_.size(); ++dim) {
      Axes axes;
      for (const int axis : to_.axes_sharding(dim)) {
        const bool same = axes.empty() || at.placement(axes[0]) == at.placement(axis);
        if (changes(axis) && at.placement(axis).is_partial() && same && is_next_reduced(at, axis)) {
          axes.emplace_back(axis);
        }
      }
      if (axes.size() > 1) {
        Layout after = at;
        for (const int axis : axes) {
          after = after.with_placement(axis, Shard(dim));
        }
        if (is_even(after, dim)) {
          offer(entry, StepKind::reduce_scatter, axes, Shard(dim));
        }
      }
    }
  }

  /// From here to the target at once, where at least two axes' shards are still in other places and
  /// nothing is left to be reduced among them. Single axes have their own steps.
  void exchange(const Entry& entry) {
    const Layout& at = entry.layout;
    const DeviceMesh& mesh = at.mesh();
    Step step;
    step.kind = StepKind::exchange;
    for (int axis = 0; axis < at.ndim(); ++axis) {
      const Placement now = at.placement(axis);
      const Placement target = to_.placement(axis);
      if (now == target && (!now.is_shard() || cuts_before(at, axis) == cuts_before(to_, axis))) {
        continue;
      }
      if (now.is_partial() || target.is_partial() || mesh.axis_size(axis) == 1) {
        return;
      }
      step.axes.push_back(axis);
    }
    if (step.axes.size() < 2) {
      return;
    }
    step.before = at;
    step.after = to_;
    // The group through the first rank: the first coordinates hold the largest parts.
    const std::span<const int> group = mesh.group(step.axes, mesh.ranks().front());
    constexpr std::size_t most_from_everywhere = 64;  // pairs of ranks are looked at
    if (group.size() > most_from_everywhere && !(at == from_)) {
      return;
    }
    std::unordered_map<int, std::int64_t> received;
    for (const Transfer& t : transfers(at, group, to_, group, shape_)) {
      if (t.source != t.destination) {
        std::int64_t& bytes = received[t.destination];
        bytes += t.box.shape.product() * element_size_;
        step.bytes = std::max(step.bytes, bytes);
      }
    }
    plan_detail::price(step, shape_, element_size_);
    reach(entry, std::move(step));
  }

  void offer(const Entry& entry, StepKind kind, const Axes& axes, Placement placement) {
    Layout after = entry.layout;
    for (const int axis : axes) {
      after = after.with_placement(axis, placement);
    }
    if (after == entry.layout) {
      return;
    }
    const Placement now = entry.layout.placement(axes[0]);
    Step step;
    step.kind = kind;
    step.axes = axes;
    step.from_dim = now.dim();
    step.to_dim = placement.dim();
    step.op = now.is_partial() ? now.reduce_op() : placement.reduce_op();
    step.before = entry.layout;
    step.after = after;
    plan_detail::price(step, shape_, element_size_);
    reach(entry, std::move(step));
  }

  void reach(const Entry& entry, Step step) {
    const Layout after = step.after;
    const double cost = entry.cost + step.cost;
    const auto [it, fresh] = best_.try_emplace(after);
    if (!fresh && cost >= it->second.cost) {
      return;
    }
    it->second = {cost, std::move(step)};
    queue_.push({cost, ++pushed_, after});
  }

  const Layout from_;
  const Layout to_;
  const Dims shape_;
  const std::int64_t element_size_;
  std::vector<bool> may_change_;
  std::vector<int> dims_;
  std::unordered_map<Layout, ReachedLayout> best_;
  std::priority_queue<Entry> queue_;
  std::uint64_t pushed_ = 0;
};

}  // namespace

namespace plan_detail {

std::vector<Step> cheapest_steps(const Layout& from, const Layout& to, const Dims& shape,
                                 std::size_t element_size) {
  return Search(from, to, shape, element_size).run();
}

}  // namespace plan_detail

}  // namespace tessera
