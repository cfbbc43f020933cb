module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

namespace tessera::parallel {
bool gradient_sync_enabled() { return step_context().sums_gradients; }

std::vector<LeafRange> tree_nodes(LeafRange leaves) {
  std::vector<LeafRange> nodes;
  while (leaves.count > 0) {
    auto size = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(leaves.count)));
    while (leaves.first % size != 0) {
      size /= 2;
    }
    nodes.push_back({leaves.first, size});
    leaves = {leaves.first + size, leaves.count - size};
  }
  return nodes;
}

/// Attached to a parameter.
struct EarlierSums {
  Tensors sums;
};

namespace {

std::int64_t ranks_along(const DeviceMesh& mesh, std::span<const int> axes) {
  return std::accumulate(axes.begin(), axes.end(), std::int64_t{1},
                         [&](std::int64_t n, int axis) { return n * mesh.axis_size(axis); });
}

}  // namespace

TreeSums tree_sums(const DeviceMesh& mesh, std::span<const int> batch_axes,
                   const LeafRange& leaves) {
  TreeSums sums{.mesh = mesh, .leaves = leaves};
  for (const int axis : batch_axes) {
    if (mesh.axis_size(axis) > 1) {
      sums.axes.push_back(axis);
    }
  }
  return sums;
}

std::vector<collective::MemberRange> terms_of_sums(std::span<const int> axes) {
  const std::optional<TreeSums>& tree = step_context().tree_sums;
  std::vector<collective::MemberRange> one_sum(1);
  // Sums over the further axes come before, and are of whole nodes.
  if (!tree || tree->axes.empty() || std::ranges::find(axes, tree->axes.front()) == axes.end()) {
    return one_sum;
  }
  std::vector<int> further;  // over which each rank's term is a sum already
  for (const int axis : tree->axes) {
    if (std::ranges::find(axes, axis) == axes.end()) {
      further.push_back(axis);
    }
  }
  const std::int64_t summed = ranks_along(tree->mesh, further);
  const LeafRange leaves = {tree->leaves.first / summed, tree->leaves.count / summed};
  const std::vector<LeafRange> nodes = tree_nodes(leaves);
  const std::int64_t ranks = ranks_along(tree->mesh, axes);
  if (nodes.size() == 1 && nodes.front().count == ranks) {
    return one_sum;
  }
  require(ranks * summed == ranks_along(tree->mesh, tree->axes),
          "virtual shards: a gradient is summed over features and over the batch in one call");
  std::vector<collective::MemberRange> sums;
  for (const LeafRange& node : nodes) {
    sums.push_back({static_cast<std::int32_t>(node.first - leaves.first),
                    static_cast<std::int32_t>(node.count)});
  }
  return sums;
}

void add_earlier_sum(nn::Parameter& parameter, Tensor sum) {
  parameter.attach<EarlierSums>().sums.push_back(std::move(sum));
}

Tensors take_earlier_sums(nn::Parameter& parameter) {
  return std::exchange(parameter.attach<EarlierSums>().sums, {});
}

/// Called about a parameter's gradient while backward runs; attached to the parameter by what
/// reduces its gradient.
struct GradientHooks {
  std::function<void(nn::Parameter&)> before_adding;
  std::function<void(nn::Parameter&)> complete;
};

namespace {

void gradient_is_complete(nn::Parameter& parameter) {
  if (const auto& hook = parameter.attached<GradientHooks>().complete) {
    hook(parameter);
  }
}

void before_adding(nn::Parameter& parameter) {
  if (const auto& hook = parameter.attached<GradientHooks>().before_adding) {
    hook(parameter);
  }
}

/// Whether a leaf's hook is one of GradientFinisher, which every leaf has.
bool is_own(const GradientHook& hook) {
  return std::string_view(hook.target_type().name()).find("GradientFinisher") !=
         std::string_view::npos;
}

/// Error: a hook on the parameter's gradient would never run, as forward computes with another
/// tensor than its value.
void refuse_leaf_hooks(const nn::Parameter& parameter) {
  const GradState* const state = grad_state(parameter.value);
  if (state != nullptr &&
      (!std::ranges::all_of(state->leaf_hooks, is_own) || !state->post_accumulate_hooks.empty())) {
    fail({.thing = "gradients",
          .wrong = fmt::format("parameter '{}' has a hook on its gradient that never runs, because "
                               "a style or a precision computes with another tensor than its value",
                               parameter.name),
          .advice = "change the reduced gradient in ShardedParameters::set_reduction_hook(), or "
                    "parameter->value.grad() before the update"});
  }
}

}  // namespace

void add_to_gradient(nn::Parameter& parameter, Tensor gradient, bool complete) {
  refuse_leaf_hooks(parameter);
  before_adding(parameter);
  Tensor& sum = parameter.value.grad();
  sum = sum ? add_gradients(sum, gradient) : std::move(gradient);
  if (complete) {
    gradient_is_complete(parameter);
  }
}

namespace {

std::string names_of(const DeviceMesh& mesh, const std::vector<int>& axes) {
  std::vector<std::string> names;
  for (const int axis : axes) {
    names.emplace_back(mesh.axis_name(axis));
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

/// Puts an all-reduce over the axes into the communication report.
void report_sum(const DeviceMesh& mesh, const std::vector<int>& axes, std::int64_t bytes,
                double seconds) {
  if (communication_reported()) {
    const auto ranks = static_cast<int>(mesh.group(axes, current_rank()).size());
    record_communication(
        {"all_reduce", names_of(mesh, axes),
         collective::received_bytes(collective::CallKind::all_reduce, bytes, DType::u8, 0, ranks),
         "finish_gradients", false, seconds});
  }
}

/// The mesh of the parameters whose gradients ranks have in common; none where there is one rank.
const DeviceMesh* shared_mesh(std::span<const nn::ParameterPointer> parameters) {
  for (const nn::ParameterPointer& parameter : parameters) {
    if (parameter->value.is_distributed()) {
      const DeviceMesh& mesh = parameter->value.layout().mesh();
      return mesh.size() > 1 ? &mesh : nullptr;
    }
  }
  return nullptr;
}

/// A parameter without a gradient must have none on every rank: ranks would pair the sums of
/// different parameters, or wait for each other.
void check_presence(std::span<const nn::ParameterPointer> parameters) {
  const DeviceMesh* const mesh = shared_mesh(parameters);
  if (mesh == nullptr) {
    return;
  }
  std::vector<std::int32_t> mine;
  for (const nn::ParameterPointer& parameter : parameters) {
    mine.push_back(parameter->value.grad() ? 1 : 0);
  }
  std::vector<int> axes(static_cast<std::size_t>(mesh->ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  const Dims shape = {static_cast<std::int64_t>(mine.size())};
  const bool on_meta = parameters.front()->value.is_meta();  // a trial: nothing can be compared
  const Tensor present =
      from_values(std::span<const std::int32_t>(mine), shape, on_meta ? meta : cpu);
  const CommunicationTimer timer;
  ops::all_reduce_(present, ReduceOp::sum,
                   ops::GroupArgument::of(mesh->group(axes, current_rank())));
  report_sum(*mesh, axes, static_cast<std::int64_t>(mine.size() * sizeof mine[0]), timer.seconds());
  const std::vector<double> counts = on_meta ? std::vector<double>() : to_doubles(present);
  for (const auto& [count, parameter, own] : ranges::views::zip(counts, parameters, mine)) {
    if (count != 0 && count != mesh->size()) {
      fail({.thing = "gradients",
            .wrong = fmt::format("parameter '{}' has a gradient on {} of {} ranks ({} on rank {})",
                                 parameter->name, count, mesh->size(), own != 0 ? "one" : "none",
                                 current_rank()),
            .advice = "all ranks must use the same parameters in a step"});
    }
  }
}

/// The axes along which a gradient is Partial and its parameter is Replicate.
std::vector<int> axes_to_sum(const nn::Parameter& parameter) {
  const Tensor& value = parameter.value;
  std::vector<int> axes;
  if (value.is_distributed() && value.grad() && value.grad().is_distributed()) {
    for (int axis = 0; axis < value.layout().ndim(); ++axis) {
      if (value.grad().layout().placement(axis) == Partial() &&
          value.layout().placement(axis).is_replicate()) {
        axes.push_back(axis);
      }
    }
  }
  return axes;
}

/// The gradient's local part, to be summed in place: the parameter's own, or a copy where anything
/// else has the memory or the gradient's own graph.
Tensor summable(nn::Parameter& parameter) {
  Tensor& gradient = parameter.value.grad();
  const bool alone = !gradient.requires_grad() && gradient.impl()->references == 1 &&
                     gradient.local().impl()->references == 1 &&
                     gradient.local().storage().references() == 1 &&
                     gradient.local().storage().owns_memory() && gradient.local().is_contiguous();
  if (!alone) {
    gradient = ops::clone(detached(gradient));
  }
  return gradient.local();
}

/// Gradients that one all-reduce sums.
struct Bucket {
  std::vector<int> axes;
  DType dtype = DType::f32;
  Device device;
  std::vector<nn::Parameter*> members = {};
  GradientBucket sums = {};  // of the members' local gradients, once it is issued
  /// Of copies of them, where the ranks' terms are several nodes of a tree; see TreeSums.
  std::vector<GradientBucket> earlier = {};
  std::int64_t bytes = 0;
};

/// A bucket is issued when it has so many bytes: enough that the time of a call is little beside
/// that of its data, few enough that the last one, which nothing hides, is short.
constexpr std::int64_t bucket_bytes = std::int64_t{4} << 20;

}  // namespace

class GradientFinisher::Sums {
 public:
  void begin(std::span<const nn::ParameterPointer> parameters, const Count& begun,
             const std::shared_ptr<Sums>& self) {
    abandon();
    for (const nn::ParameterPointer& parameter : parameters) {
      watch(parameter, self);
    }
    ++step_;
    number_ = begun.source() == 0 ? Count(step_) : begun.plus(step_ - begun.untraced_value());
    in_backward_ = true;
  }

  void count_step() {
    ++step_;
    number_ = step_;
  }

  void finish(std::span<const nn::ParameterPointer> parameters) {
    in_backward_ = false;
    sum(parameters);
    sum(parameters);  // gradients that were put in the place of others whose sums were issued
  }

 private:
  void sum(std::span<const nn::ParameterPointer> parameters) {
    for (const nn::ParameterPointer& parameter : parameters) {
      add(*parameter);
    }
    for (Bucket& bucket : open_) {
      issue(std::move(bucket));
    }
    open_.clear();
    while (!issued_.empty()) {
      complete(issued_.front());
      issued_.erase(issued_.begin());
    }
  }

  /// Drops what a step that ended by an error has left. What was issued ends.
  void abandon() {
    in_backward_ = false;
    placed_.clear();
    open_.clear();
    issued_.clear();
  }

  void watch(const nn::ParameterPointer& parameter, const std::shared_ptr<Sums>& self) {
    const Tensor& leaf = parameter->value;
    if (!leaf.is_distributed() || !leaf.requires_grad()) {
      return;
    }
    const std::weak_ptr<Sums> sums = self;
    auto& hooks = parameter->attach<GradientHooks>();
    hooks.complete = [sums](nn::Parameter& complete) {
      if (const auto own = sums.lock(); own && own->in_backward_) {
        own->arrived(complete);
      }
    };
    hooks.before_adding = [sums](nn::Parameter& added_to) {
      if (const auto own = sums.lock()) {
        own->complete_before_adding(added_to);
      }
    };
    Tensor& seen = watched_[parameter.get()];
    if (seen.same_as(leaf)) {
      return;
    }
    seen = leaf;
    const std::weak_ptr<nn::Parameter> watched = parameter;
    add_gradient_hook(leaf, [watched](const Tensor&) {
      if (const auto again = watched.lock()) {
        before_adding(*again);
      }
      return Tensor();
    });
    add_final_accumulate_hook(leaf, [watched](Tensor&) {
      if (const auto complete = watched.lock(); complete && gradient_sync_enabled()) {
        gradient_is_complete(*complete);
      }
    });
  }

  void arrived(nn::Parameter& parameter) {
    const NoGrad no_grad;
    if (Bucket* const bucket = add(parameter); bucket != nullptr && bucket->bytes >= bucket_bytes) {
      issue(std::move(*bucket));
      open_.erase(open_.begin() + (bucket - open_.data()));
    }
  }

  /// Null: there is nothing to sum, or it is in a bucket already.
  Bucket* add(nn::Parameter& parameter) {
    const std::vector<int> axes = axes_to_sum(parameter);
    if (axes.empty() || !placed_.insert(&parameter).second) {
      return nullptr;
    }
    const Tensor& gradient = parameter.value.grad();
    auto found = std::ranges::find_if(open_, [&](const Bucket& b) {
      return mesh_of(b) == parameter.value.layout().mesh() && b.axes == axes &&
             b.dtype == gradient.dtype() && b.device == gradient.device();
    });
    if (found == open_.end()) {
      open_.push_back({axes, gradient.dtype(), gradient.device()});
      found = open_.end() - 1;
    }
    found->members.push_back(&parameter);
    found->bytes += gradient.local().numel() * static_cast<std::int64_t>(size_of(found->dtype));
    return &*found;
  }

  /// Without gradients that were cleared or replaced by complete ones since they arrived.
  void issue(Bucket bucket) {
    std::erase_if(bucket.members, [&](nn::Parameter* parameter) {
      return axes_to_sum(*parameter) != bucket.axes && placed_.erase(parameter) > 0;
    });
    if (bucket.members.empty()) {
      return;
    }
    std::string names;
    for (nn::Parameter* parameter : bucket.members) {
      bucket.sums.add(summable(*parameter));
      names += parameter->name + ' ';
    }
    const auto identity =
        static_cast<std::int64_t>(std::hash<std::string>{}(names)&std::size_t{0x7fffffff});
    const std::vector<collective::MemberRange> terms = terms_of_sums(bucket.axes);
    for (std::size_t i = 0; i + 1 < terms.size(); ++i) {  // each takes the place of its terms
      const MemoryScope scope(MemoryCategory::gradient);
      const PeersReadScope read;
      GradientBucket& earlier = bucket.earlier.emplace_back();
      for (const Tensor& gradient : bucket.sums.sums()) {
        earlier.add(ops::clone(gradient));
      }
      earlier.issue(group_of(bucket, terms[i]), identity, number_);
    }
    bucket.sums.issue(group_of(bucket, terms.back()), identity, number_);
    issued_.push_back(std::move(bucket));
  }

  static const DeviceMesh& mesh_of(const Bucket& bucket) {
    return bucket.members.front()->value.layout().mesh();
  }
  static ops::GroupArgument group_of(const Bucket& bucket, const collective::MemberRange& terms) {
    return ops::GroupArgument::of(mesh_of(bucket).group(bucket.axes, current_rank()), "gradients",
                                  terms);
  }

  void complete(const Bucket& bucket) {
    const CommunicationTimer timer;
    for (const GradientBucket& earlier : bucket.earlier) {
      earlier.complete();
    }
    bucket.sums.complete();
    report_sum(mesh_of(bucket), bucket.axes, bucket.bytes, timer.seconds());
    for (std::size_t i = 0; i < bucket.members.size(); ++i) {
      Tensor& gradient = bucket.members[i]->value.grad();
      placed_.erase(bucket.members[i]);
      if (!gradient || !gradient.is_distributed() ||
          !gradient.local().same_as(bucket.sums.sums()[i])) {
        continue;  // it was cleared or replaced meanwhile
      }
      Layout layout = gradient.layout();
      for (const int axis : bucket.axes) {
        layout = layout.with_placement(axis, Replicate());
      }
      const SpecHandle spec = Spec::make(layout, gradient.shape(), bucket.dtype);
      gradient = make_distributed(bucket.sums.sums()[i], spec);
      for (const GradientBucket& earlier : bucket.earlier) {
        add_earlier_sum(*bucket.members[i], make_distributed(earlier.sums()[i], spec));
      }
    }
  }

  /// A second backward of the step adds to a gradient whose sum was issued.
  void complete_before_adding(const nn::Parameter& parameter) {
    if (!placed_.contains(&parameter)) {
      return;
    }
    const auto found = std::ranges::find_if(issued_, [&](const Bucket& b) {
      return std::ranges::find(b.members, &parameter) != b.members.end();
    });
    if (found != issued_.end()) {
      const NoGrad no_grad;
      complete(*found);
      issued_.erase(found);
    }
  }

  bool in_backward_ = false;
  std::vector<Bucket> open_;
  std::vector<Bucket> issued_;                       // in the order of their calls
  std::unordered_set<const nn::Parameter*> placed_;  // those in a bucket
  std::unordered_map<const nn::Parameter*, Tensor> watched_;
  std::int64_t step_ = 0;
  Count number_ = 0;  // the same, and where it comes from
};

GradientFinisher::GradientFinisher() : sums_(std::make_shared<Sums>()) {}
GradientFinisher::~GradientFinisher() = default;

void GradientFinisher::begin(std::span<const nn::ParameterPointer> parameters, const Count& begun) {
  sums_->begin(parameters, begun, sums_);
}

void GradientFinisher::count_step() { sums_->count_step(); }

void GradientFinisher::finish(std::span<const nn::ParameterPointer> parameters) {
  run_phase("gradient reduction", [&] {
    const NoGrad no_grad;
    check_presence(parameters);
    sums_->finish(parameters);
    for (const nn::ParameterPointer& parameter : parameters) {
      const Tensor& value = parameter->value;
      if (value.grad() && value.is_distributed() && !(value.grad().layout() == value.layout())) {
        value.grad() = redistribute(value.grad(), value.layout());
      }
    }
  });
}

}  // namespace tessera::parallel
