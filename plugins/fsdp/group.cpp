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

namespace {

constexpr std::size_t slot_alignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
}

}  // namespace

void Group::plan_memory() {
  const int ranks = mesh_.axis_size(axis_);
  shard_bytes_ = 0;
  whole_bytes_ = 0;
  for (Member& m : members_) {
    const Tensor& value = m.parameter->value;
    const std::size_t element = size_of(value.dtype());
    m.whole =
        Spec::make(value.layout().with_placement(axis_, Replicate()), value.shape(), value.dtype());
    const Dims shape = local_shape(*m.whole);
    m.total = shape.product();
    const std::int64_t row = shape[0] > 0 ? m.total / shape[0] : 0;
    m.chunk = chunk_size(shape[0], ranks) * row;
    m.slot = shard_bytes_;
    shard_bytes_ += aligned(static_cast<std::size_t>(m.chunk) * element);
    m.offset = whole_bytes_;
    whole_bytes_ += aligned(static_cast<std::size_t>(m.total) * element);
  }
}

void Group::set_unsharded(Member& m, Tensor local) {
  m.unsharded = make_distributed(std::move(local), m.whole);
  m.unsharded.set_requires_grad();
  add_post_accumulate_hook(m.unsharded, [this](Tensor&) { ++arrived_; });
}

void Group::materialize() {
  communicator_ = &communicator(mesh_, axis_);
  plan_memory();
  const int me = mesh_.coordinate_of(current_rank(), axis_);
  shards_ = std::make_shared<collective::SharedBuffer>(communicator_->allocate(shard_bytes_));
  account_memory(MemoryCategory::parameter, static_cast<std::int64_t>(shard_bytes_));
  {
    const MemoryScope scope(MemoryCategory::communication);
    whole_ = Storage::allocate(whole_bytes_);
  }
  for (Member& m : members_) {
    Tensor& value = m.parameter->value;
    const Spec* const sharded = value.spec();
    const Dims shape = local_shape(*m.whole);
    const auto element = static_cast<std::int64_t>(size_of(value.dtype()));
    set_unsharded(m, from_storage(whole_, shape, contiguous_strides(shape),
                                  static_cast<std::int64_t>(m.offset) / element, value.dtype()));

    std::byte* const mine = shards_->data() + m.slot;
    value =
        make_distributed(from_memory(mine, local_shape(*sharded), value.dtype(), shards_), sharded);
    value.set_requires_grad();
    const std::int64_t begin = std::min(m.total, me * m.chunk);
    gather_.push_back(
        {begin < m.total ? mine : nullptr, m.unsharded.local().raw_data(), m.chunk, m.total});
  }
  reshard();
}

/// Puts a collective into the communication report: a rank receives a padded shard of each other.
void Group::report(const char* operation, double seconds) const {
  if (communication_reported()) {
    const auto bytes = static_cast<std::int64_t>(shard_bytes_) * (mesh_.axis_size(axis_) - 1);
    record_communication(
        {operation, mesh_.axis_name(axis_), bytes, "FSDP " + name_, false, seconds});
  }
}

/// Ends a gather that is under way.
void Group::finish_gathering() {
  const CommunicationTimer timer;
  if (materialized()) {
    gathering_.wait();
  }
  report("all_gather", timer.seconds());
}

void Group::start_unshard() {
  if (state_ != State::sharded) {
    return;
  }
  if (materialized()) {
    whole_->restore_memory();
    for (std::size_t i = 0; i < members_.size(); ++i) {
      gather_[i].destination = members_[i].unsharded.local().raw_data();
    }
    gathering_ = communicator_->all_gather_async(gather_, members_[0].parameter->value.dtype());
  } else if (!members_[0].unsharded) {
    plan_memory();
    for (Member& m : members_) {
      set_unsharded(m, tessera::empty(local_shape(*m.whole), m.whole->dtype, meta));
    }
  }
  state_ = State::gathering;
}

void Group::unshard() {
  start_unshard();
  if (state_ == State::gathering) {
    finish_gathering();
    state_ = State::unsharded;
  }
  for (Member& m : members_) {
    m.parameter->computed = m.unsharded;
  }
}

void Group::reshard() {
  if (state_ == State::gathering) {
    finish_gathering();
  }
  if (materialized()) {
    whole_->release_memory();
  }
  state_ = State::sharded;
  for (Member& m : members_) {
    m.parameter->computed = Tensor();
  }
}

void Group::end_backward(bool reduce, std::vector<Tensor>& reading) {
  arrived_ = 0;
  if (reduce) {
    reduce_gradients(reading);
  }
  reshard();
}

void Group::reduce_gradients(std::vector<Tensor>& reading) {
  std::size_t present = 0;
  std::string missing;
  for (const Member& m : members_) {
    present += m.unsharded.grad() ? 1 : 0;
    missing = m.unsharded.grad() ? missing : m.parameter->name;
  }
  if (present == 0) {
    return;
  }
  if (present < members_.size()) {
    fail(fmt::format(
        "FSDP: parameter '{}' of group '{}' had no gradient on rank {}, others of the group had; a "
        "parameter that a step does not use must stand in a group of its own",
        missing, name_, current_rank()));
  }
  const DType dtype = members_[0].parameter->value.dtype();
  const auto element = static_cast<std::int64_t>(size_of(dtype));
  const bool accumulate = static_cast<bool>(members_[0].parameter->value.grad());
  if (!accumulate) {
    const MemoryScope scope(MemoryCategory::gradient);
    shard_gradients_ = materialized() ? Storage::allocate(shard_bytes_) : Storage::none();
  }
  std::vector<collective::Segment> segments;
  std::vector<Tensor> sources;
  for (Member& m : members_) {
    const Tensor& whole = m.unsharded.grad();
    Layout layout = whole.layout();
    if (layout.placement(axis_).is_replicate()) {
      layout =
          layout.with_placement(axis_, Partial());  // the same on all ranks: one of them keeps it
    } else if (!(layout.placement(axis_) == Partial())) {
      fail(fmt::format("FSDP: the gradient of '{}' is {}; Partial(sum) along axis '{}' is expected",
                       m.parameter->name, to_string(layout), mesh_.axis_name(axis_)));
    }
    // Other axes: where the parameter is a Shard the gradient must lie alike; Partials wait for the
    // end of the step.
    Layout wanted = layout;
    for (int a = 0; a < mesh_.ndim(); ++a) {
      if (a != axis_ && m.parameter->value.layout().placement(a).is_shard()) {
        wanted = wanted.with_placement(a, m.parameter->value.layout().placement(a));
      }
    }
    sources.push_back(ops::contiguous(redistribute(whole, wanted).local()));
    const Layout sharded = wanted.with_placement(axis_, Shard(0));
    const Spec* const gradient = Spec::make(sharded, whole.shape(), dtype);
    const Dims shape = local_shape(*gradient);
    const auto at = static_cast<std::int64_t>(m.slot) / element;
    const Tensor shard = from_storage(shard_gradients_, shape, contiguous_strides(shape), at, dtype,
                                      materialized() ? cpu : meta);
    segments.push_back({sources.back().raw_data(), shard.raw_data(), m.chunk, m.total});
    if (!accumulate) {
      m.parameter->value.grad() = make_distributed(shard, gradient);
    }
  }
  if (materialized()) {
    communicator_->wait_sources_free();  // of the reduction before: `reading` lets go of them below
  }
  const CommunicationTimer timer;
  if (materialized()) {
    communicator_->reduce_scatter(segments, dtype, {.accumulate = accumulate});
  }
  report("reduce_scatter", timer.seconds());
  reading = std::move(sources);
  for (Member& m : members_) {
    m.unsharded.grad() = Tensor();
  }
}

void Group::wait_sources_free() { communicator_->wait_sources_free(); }

}  // namespace fsdp
