module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;

// Dijkstra's search over layouts; an edge changes the placement of one mesh axis.
namespace tessera {

namespace {

/// Whether two reductions may change places.
bool commute(ReduceOp a, ReduceOp b) {
  const auto linear = [](ReduceOp op) { return op == ReduceOp::sum || op == ReduceOp::avg; };
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
      links_.push_back(link_of(from.mesh(), axis));
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
  struct Reached {
    double cost;
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
      return std::all_of(from_.placements().begin(), from_.placements().end(), [&](Placement p) {
        return !p.is_partial() || commute(p.reduce_op(), placement.reduce_op());
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
      offer(entry, StepKind::relabel, axis, target);
      return;
    }
    if (now.is_replicate()) {
      for (const int dim : dims_) {
        offer(entry, StepKind::slice, axis, Shard(dim));
      }
      if (target.is_partial()) {
        const bool zeros = target.reduce_op() == ReduceOp::sum;
        const bool ones = target.reduce_op() == ReduceOp::product;
        offer(entry, zeros || ones ? StepKind::keep_first : StepKind::relabel, axis, target);
      }
    } else if (now.is_shard()) {
      if (!at.is_innermost(axis)) {
        return;
      }
      offer(entry, StepKind::all_gather, axis, Replicate());
      for (const int dim : dims_) {
        if (dim != now.dim()) {
          offer(entry, StepKind::all_to_all, axis, Shard(dim));
        }
      }
      if (target == Partial(ReduceOp::sum)) {
        offer(entry, StepKind::pad, axis, target);
      }
    } else if (is_next_reduced(at, axis)) {
      offer(entry, StepKind::all_reduce, axis, Replicate());
      for (const int dim : dims_) {
        offer(entry, StepKind::reduce_scatter, axis, Shard(dim));
      }
    }
  }

  /// Whether no Partial of a smaller axis has to be reduced before this one.
  static bool is_next_reduced(const Layout& at, int axis) {
    for (int other = 0; other < axis; ++other) {
      const Placement placement = at.placement(other);
      if (placement.is_partial() && at.mesh().axis_size(other) > 1 &&
          !commute(placement.reduce_op(), at.placement(axis).reduce_op())) {
        return false;
      }
    }
    return true;
  }

  void offer(const Entry& entry, StepKind kind, int axis, Placement placement) {
    const Layout after = entry.layout.with_placement(axis, placement);
    if (after == entry.layout) {
      return;
    }
    const Placement now = entry.layout.placement(axis);
    Step step;
    step.kind = kind;
    step.axis = axis;
    step.from_dim = now.dim();
    step.to_dim = placement.dim();
    step.op = now.is_partial() ? now.reduce_op() : placement.reduce_op();
    step.before = entry.layout;
    step.after = after;
    price(step);
    const double cost = entry.cost + step.cost;
    const auto [it, fresh] = best_.try_emplace(after, Reached{cost, step});
    if (!fresh) {
      if (cost >= it->second.cost) {
        return;
      }
      it->second = {cost, step};
    }
    queue_.push({cost, ++pushed_, after});
  }

  std::int64_t padded_bytes(const Layout& layout) const {
    return padded_local_shape(shape_, layout).product() * element_size_;
  }

  /// Bytes that a rank receives in a ring (all-gather, reduce-scatter, all-reduce) or directly
  /// (all-to-all), chunks padded. Sizes are the largest of any rank, so that all ranks agree.
  void price(Step& step) const {
    const std::int64_t ways = step.before.mesh().axis_size(step.axis);
    switch (step.kind) {
      case StepKind::all_gather:
        step.bytes = (ways - 1) * padded_bytes(step.before);
        break;
      case StepKind::reduce_scatter:
        step.bytes = (ways - 1) * padded_bytes(step.after);
        break;
      case StepKind::all_reduce:
        step.bytes = 2 * (ways - 1) * padded_bytes(step.before) / ways;
        break;
      case StepKind::all_to_all: {
        Dims block = padded_local_shape(shape_, step.before);
        block[step.to_dim] = chunk_size(block[step.to_dim], static_cast<int>(ways));
        step.bytes = (ways - 1) * block.product() * element_size_;
        break;
      }
      case StepKind::slice:
      case StepKind::keep_first:
      case StepKind::pad:
        step.cost = local_step_cost(padded_bytes(step.after));
        return;
      case StepKind::relabel:
        step.cost = local_step_cost(0);
        return;
    }
    const Link& link = links_[static_cast<std::size_t>(step.axis)];
    step.cost = link.latency + static_cast<double>(step.bytes) / link.bandwidth;
  }

  const Layout from_;
  const Layout to_;
  const Dims shape_;
  const std::int64_t element_size_;
  std::vector<Link> links_;
  std::vector<bool> may_change_;
  std::vector<int> dims_;
  std::unordered_map<Layout, Reached> best_;
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
