// What a group does with its gradients.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

#include "group.hpp"

namespace fsdp {

using namespace tessera;
using parallel::gradient_sync_enabled;

bool Group::gradients_complete() const {
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return *m.arrived; });
}

void Group::abandon_backward() noexcept {
  for (Member& m : members_) {
    *m.arrived = false;
    if (m.unsharded) {
      m.unsharded.grad() = Tensor();
    }
  }
}

void Group::end_backward(bool reduce, Reduction& last) {
  const NoGrad no_grad;
  for (Member& m : members_) {
    *m.arrived = false;
    if (m.unsharded && m.unsharded.grad()) {
      check_gradient(m);
    }
  }
  if (reduce || !keep_gradients()) {
    reduce_gradients(last);
  }
  reshard();
}

void Group::check_gradient(const Member& m) const {
  const Tensor& gradient = m.unsharded.grad();
  if (gradient.requires_grad()) {
    fail({.thing = "FSDP",
          .wrong = fmt::format("the graph of the gradient of '{}' was requested (create_graph), "
                               "but the gradient is reduced outside of the graph",
                               m.parameter->name),
          .advice = "use Replicate for second derivatives"});
  }
  if (gradient.dtype() != m.parameter->value.dtype()) {
    fail({.thing = "FSDP",
          .wrong = fmt::format("the gradient of '{}' has the wrong type", m.parameter->name),
          .expected = std::string(name_of(m.parameter->value.dtype())),
          .got = std::string(name_of(gradient.dtype()))});
  }
}

bool Group::holds_whole_gradient(const Member& m) const {
  const Tensor& gradient = m.parameter->value.grad();
  return gradient && gradient.is_distributed() && gradient.layout().mesh() == mesh_ &&
         !gradient.layout().placement(axis_).is_shard();
}

bool Group::keep_gradients() {
  for (const Member& m : members_) {
    if (m.parameter->value.grad() && !holds_whole_gradient(m)) {
      return false;
    }
  }
  for (Member& m : members_) {
    if (Tensor gradient = take_gradient(m)) {
      m.parameter->value.grad() = std::move(gradient);
    }
  }
  return true;
}

Tensor Group::take_gradient(Member& m) {
  Tensor gradient = m.unsharded ? std::exchange(m.unsharded.grad(), Tensor()) : Tensor();
  if (gradient) {
    gradient = redistribute(gradient, reducible_layout(m, gradient));
  }
  if (holds_whole_gradient(m)) {
    Tensor kept = std::exchange(m.parameter->value.grad(), Tensor());
    kept = redistribute(kept, reducible_layout(m, kept));
    gradient = gradient ? add_gradients(kept, gradient) : std::move(kept);
  }
  return gradient;
}

Layout Group::reducible_layout(const Member& m, const Tensor& gradient) const {
  Layout layout = gradient.layout();
  if (layout.placement(axis_).is_replicate()) {
    layout =
        layout.with_placement(axis_, Partial());  // the same on all ranks: one of them keeps it
  } else if (!(layout.placement(axis_) == Partial())) {
    fail({.thing = "FSDP",
          .wrong = fmt::format("the gradient of '{}' has the wrong layout", m.parameter->name),
          .expected = fmt::format("Partial(sum) along axis '{}'", mesh_.axis_name(axis_)),
          .got = to_string(layout)});
  }
  // Other axes: where the parameter is a Shard, the gradient must be the same shard; Partials wait
  // for the end of the step.
  const Layout& parameter = m.parameter->value.layout();
  for (int a = 0; a < mesh_.ndim(); ++a) {
    if (a != axis_ && parameter.placement(a).is_shard()) {
      layout = layout.with_placement(a, parameter.placement(a));
    }
  }
  return layout;
}

void Group::finish(Reduction& reduction) {
  if (reduction.group == nullptr) {
    return;
  }
  const NoGrad no_grad;
  Reduction ended = std::exchange(reduction, {});
  const Group& group = *ended.group;
  const CommunicationTimer timer;
  ops::wait(ended.shards[0].second.local());
  reduction.before = std::move(ended.wholes);
  group.report("reduce_scatter", group.gathered_bytes(), timer.seconds());
  for (auto& [parameter, shard] : ended.shards) {
    Tensor& gradient = parameter->value.grad();
    gradient = gradient ? add_gradients(gradient, shard) : std::move(shard);
    if (ended.complete) {
      parallel::gradient_is_complete(*parameter);
    }
  }
}

void Group::settle(Reduction& reduction) {
  const Group* const group = reduction.group;
  finish(reduction);
  if (group != nullptr) {
    const NoGrad no_grad;
    ops::wait_readers(reduction.before, group->reducing_ranks_);
  }
  reduction.before.clear();
}

void Group::reduce_gradients(Reduction& last) {
  std::vector<Member*> trained;
  std::vector<Tensor> wholes;
  const Member* missing = nullptr;
  for (Member& m : members_) {
    Tensor whole = take_gradient(m);
    if (whole) {
      trained.push_back(&m);
      wholes.push_back(std::move(whole));
    } else if (m.parameter->value.requires_grad()) {
      missing = &m;
    }
  }
  if (trained.empty()) {
    return;
  }
  if (missing != nullptr) {
    fail({.thing = "FSDP",
          .wrong = fmt::format(
              "parameter '{}' of group '{}' has no gradient on rank {}, but others of the group do",
              missing->parameter->name, name_, current_rank()),
          .advice = "give a parameter that a step does not use a group of its own, or freeze it "
                    "with set_requires_grad(false)"});
  }
  const DType dtype = members_[0].parameter->value.dtype();
  Reduction reduction{.group = this, .complete = gradient_sync_enabled()};
  std::vector<Tensor> shards;
  for (Tensor& whole : wholes) {
    const SpecHandle sharded =
        Spec::make(whole.layout().with_placement(axis_, Shard(0)), whole.shape(), dtype);
    // Fresh memory: gradients of earlier backwards, wherever they are, stay and are added to. In
    // hybrid sharding the other axis' ranks read it.
    const MemoryScope scope(MemoryCategory::gradient);
    const PeersReadScope read;
    shards.push_back(empty(local_shape(*sharded), dtype, whole_.device()));
    reduction.shards.emplace_back(trained[reduction.shards.size()]->parameter,
                                  make_distributed(shards.back(), sharded));
    whole = ops::contiguous(whole.local());
  }
  finish(last);
  ops::reduce_scatter_into(shards, wholes, ReduceOp::sum, reducing_ranks_, identity_);
  reduction.wholes = std::move(wholes);
  reduction.before = std::move(last.before);
  last = std::move(reduction);
}

}  // namespace fsdp
