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
  return std::all_of(memory_.members().begin(), memory_.members().end(),
                     [](const Member& m) { return *m.arrived; });
}

void Group::abandon_backward() noexcept {
  for (Member& m : memory_.members()) {
    *m.arrived = false;
    if (m.unsharded) {
      m.unsharded.grad() = Tensor();
    }
  }
}

void Group::end_gradients(bool reduce, Reduction& last) {
  const NoGrad no_grad;
  const bool takes_part = std::ranges::any_of(
      memory_.members(), [](const Member& m) { return static_cast<bool>(*m.arrived); });
  for (Member& m : memory_.members()) {
    *m.arrived = false;
    if (m.unsharded && m.unsharded.grad()) {
      check_gradient(m);
    }
  }
  const bool of_another_stage =
      of_one_stage_ && !takes_part && !settings_.options.missing_gradients_are_zero;
  if (!of_another_stage && (reduce || !keep_gradients())) {
    reduce_gradients(last);
  }
  ended_ = true;
}

void Group::end_use() {
  const NoGrad no_grad;
  memory_.drop_part();
  if (settings_.options.reshard_after_backward) {
    reshard();
  } else {
    drop_prefetch();
  }
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
  if (gradient.dtype() != computed_type(*m.parameter)) {
    fail({.thing = "FSDP",
          .wrong = fmt::format("the gradient of '{}' has the wrong type", m.parameter->name),
          .expected = std::string(name_of(computed_type(*m.parameter))),
          .got = std::string(name_of(gradient.dtype()))});
  }
}

bool Group::holds_whole_gradient(const Member& m) const {
  const Tensor& gradient = m.parameter->value.grad();
  return gradient && gradient.is_distributed() && gradient.layout().mesh() == mesh_ &&
         !gradient.layout().placement(settings_.axes.back()).is_shard();
}

bool Group::keep_gradients() {
  for (const Member& m : memory_.members()) {
    if (m.parameter->value.grad() && !holds_whole_gradient(m)) {
      return false;
    }
  }
  for (Member& m : memory_.members()) {
    if (Tensor gradient = take_gradient(m)) {
      m.parameter->value.grad() =
          ops::cast(gradient, stored_type(*m.parameter));  // sums stay exact
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
    gradient = gradient ? add_gradients(kept, ops::cast(gradient, stored_type(*m.parameter)))
                        : std::move(kept);
  }
  return gradient;
}

Layout Group::reducible_layout(const Member& m, const Tensor& gradient) const {
  Layout layout = gradient.layout();
  const Layout& parameter = m.parameter->value.layout();
  for (int a = 0; a < mesh_.ndim(); ++a) {
    const bool sharded = std::ranges::find(settings_.axes, a) != settings_.axes.end();
    if (!sharded && parameter.placement(a).is_shard()) {
      // The gradient must be the same shard; on other axes, Partials wait for the end of the step.
      layout = layout.with_placement(a, parameter.placement(a));
    } else if (sharded && layout.placement(a).is_replicate()) {
      layout = layout.with_placement(a, Partial());  // equal on all ranks: one of them keeps it
    } else if (sharded && !(layout.placement(a) == Partial())) {
      fail({.thing = "FSDP",
            .wrong = fmt::format("the gradient of '{}' has the wrong layout", m.parameter->name),
            .expected = fmt::format("Partial(sum) along axis '{}'", mesh_.axis_name(a)),
            .got = to_string(layout)});
    }
  }
  return layout;
}

namespace {

/// The sum of the parameter's gradient, which is taken from it, and this one: where gradients are
/// kept.
Tensor kept_elsewhere(nn::Parameter& parameter, const Tensor& gradient) {
  MemoryPlace& place = *parameter.attached<nn::MemoryPlaces>().gradient;
  Tensor sum = gradient;
  if (Tensor before = std::exchange(parameter.value.grad(), Tensor())) {
    const Storage* const place_of_before = &before.local().storage();
    sum = add_gradients(before, gradient);
    if (&sum.local().storage() == place_of_before) {  // added in place
      if (!sum.is_meta()) {
        place.put_away(sum.local());
      }
      return sum;
    }
  }
  const Tensor local = sum.local();
  Tensor kept = nn::gradient_memory_of(parameter);
  ops::copy_(kept, local);
  if (!kept.is_meta()) {
    place.put_away(kept);
  }
  return make_distributed(std::move(kept), sum.spec());
}

}  // namespace

void Group::finish(Reduction& reduction) {
  if (reduction.group == nullptr) {
    return;
  }
  const NoGrad no_grad;
  Reduction ended = std::exchange(reduction, {});
  const Group& group = *ended.group;
  const CommunicationTimer timer;
  for (const GradientBucket& bucket : ended.buckets) {
    bucket.complete();
  }
  reduction.before = ended.buckets.front().take_terms();
  group.report("reduce_scatter", ended.bytes, timer.seconds());
  for (GradientBucket& bucket : ended.buckets) {
    finish_shards(ended, bucket.take_sums(), &bucket == &ended.buckets.back());
  }
}

void Group::finish_shards(const Reduction& ended, std::vector<Tensor> shards, bool last) {
  const Settings& settings = ended.group->settings_;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto& [parameter, dim, spec] = ended.parts[i];
    const MemoryScope scope(MemoryCategory::gradient);
    const PeersReadScope read;  // in hybrid sharding, the other axis' ranks
    Tensor local = ops::cast(from_outermost(shards[i], dim), parameter->value.dtype());
    shards[i] = Tensor();
    Tensor gradient = make_distributed(ops::contiguous(local), spec);
    if (settings.gradient_factor != 1) {
      gradient = ops::mul_scalar(gradient, settings.gradient_factor);
    }
    if (settings.reduction_hook) {
      Tensor changed = gradient.local();
      settings.reduction_hook(*parameter, changed);
      gradient = make_distributed(std::move(changed), spec);
    }
    if (!last) {
      parallel::add_earlier_sum(*parameter, std::move(gradient));
      continue;
    }
    if (parameter->attached<nn::MemoryPlaces>().gradient) {
      gradient = kept_elsewhere(*parameter, gradient);
    }
    parallel::add_to_gradient(*parameter, std::move(gradient), ended.complete);
  }
}

void Group::settle(Reduction& reduction) {
  const Group* const group = reduction.group;
  finish(reduction);
  if (group != nullptr) {
    const NoGrad no_grad;
    ops::wait_readers(reduction.before, group->memory_.reducing_ranks());
  }
  reduction.before.clear();
}

void Group::reduce_gradients(Reduction& last) {
  std::vector<const Member*> trained;
  std::vector<Tensor> wholes;
  const Member* missing = nullptr;
  bool any = false;
  for (Member& m : memory_.members()) {
    Tensor whole = take_gradient(m);
    any = any || whole;
    if (!whole && m.parameter->value.requires_grad()) {
      if (settings_.options.missing_gradients_are_zero && (any || !ended_)) {
        whole = zero_gradient(m);
      } else {
        missing = &m;
      }
    }
    if (whole) {
      trained.push_back(&m);
      wholes.push_back(std::move(whole));
    }
  }
  if (any && missing != nullptr) {
    fail({.thing = "FSDP",
          .wrong = fmt::format(
              "parameter '{}' of group '{}' has no gradient on rank {}, but others of the group do",
              missing->parameter->name, name_, current_rank()),
          .advice = "give a parameter that a step does not use a group of its own, freeze it with "
                    "set_requires_grad(false), or set the option missing = \"zeros\""});
  }
  if (!trained.empty()) {
    issue(trained, std::move(wholes), last);
  }
}

Tensor Group::zero_gradient(const Member& m) const {
  const Tensor& value = m.parameter->value;
  const SpecHandle spec = Spec::make(memory_.along_axes(value.layout(), Partial()), value.shape(),
                                     computed_type(*m.parameter));
  return make_distributed(zeros(local_shape(*spec), spec->dtype, value.device()), spec);
}

void Group::issue(const std::vector<const Member*>& trained, std::vector<Tensor> wholes,
                  Reduction& last) {
  // One collective has one type: that of a kept gradient is the parameter's.
  const DType stored = stored_type(*trained[0]->parameter);
  const DType type =
      std::ranges::any_of(wholes, [&](const Tensor& whole) { return whole.dtype() == stored; })
          ? stored
          : computed_type(*trained[0]->parameter);
  const DType reduced_type = size_of(type) == 2 ? settings_.options.reduce_dtype : type;
  Reduction reduction{.group = this, .complete = gradient_sync_enabled()};
  const std::vector<collective::MemberRange> terms = parallel::terms_of_sums(settings_.axes);
  reduction.buckets.resize(terms.size());
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    Tensor& whole = wholes[i];
    const Member& m = *trained[i];
    const SpecHandle spec = Spec::make(memory_.along_axes(whole.layout(), Shard(m.dim)),
                                       whole.shape(), m.parameter->value.dtype());
    const PeersReadScope read;  // the shards, too: in hybrid sharding by the other axis' ranks
    reduction.parts.push_back({m.parameter, m.dim, spec});
    const Dims part =
        part_shape(outermost(local_shape(*m.whole), m.dim), memory_.reducing_ranks().size(), 0);
    reduction.bytes += part.product() * static_cast<std::int64_t>(size_of(type)) *
                       (memory_.reducing_ranks().size() - 1);
    // (n, ...), as in GroupMemory::plan(); the bucket's sum is this rank's part of it.
    const Tensor term =
        ops::contiguous(outermost(ops::cast(std::exchange(whole, Tensor()), type).local(), m.dim));
    for (GradientBucket& bucket : reduction.buckets) {
      // Fresh memory: gradients of earlier backwards, wherever they are, stay and are added to.
      const MemoryScope scope(MemoryCategory::gradient);
      bucket.add(term, empty(outermost(local_shape(*spec), m.dim), reduced_type, term.device()));
    }
  }
  finish(last);
  for (std::size_t i = 0; i < terms.size(); ++i) {
    reduction.buckets[i].issue(memory_.reducing_ranks().with_terms(terms[i]), memory_.identity());
  }
  reduction.before = std::move(last.before);
  last = std::move(reduction);
}

}  // namespace fsdp
