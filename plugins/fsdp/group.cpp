#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
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

std::uint64_t version_of(const Tensor& shard) { return shard.local().storage().version(); }

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
  if (m.parameter->value.requires_grad()) {
    m.unsharded.set_requires_grad();
    add_post_accumulate_hook(m.unsharded, [arrived = m.arrived](Tensor&) { *arrived = true; });
  }
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
    const bool trained = value.requires_grad();
    value =
        make_distributed(from_memory(mine, local_shape(*sharded), value.dtype(), shards_), sharded);
    value.set_requires_grad(trained);
    const std::int64_t begin = std::min(m.total, me * m.chunk);
    gather_.push_back(
        {begin < m.total ? mine : nullptr, m.unsharded.local().raw_data(), m.chunk, m.total});
  }
  // No elements: only its extent takes part in the comparison of calls.
  identity_.chunk =
      1 + static_cast<std::int64_t>(std::hash<std::string>{}(name_)&std::size_t{0x7fffffff});
  gather_.push_back(identity_);
  reshard();
}

/// Puts a collective into the communication report.
void Group::report(const char* operation, std::int64_t bytes, double seconds) const {
  if (communication_reported()) {
    record_communication(
        {operation, mesh_.axis_name(axis_), bytes, "FSDP " + name_, false, seconds});
  }
}

/// A rank receives a padded shard of each other.
std::int64_t Group::gathered_bytes() const {
  return static_cast<std::int64_t>(shard_bytes_) * (mesh_.axis_size(axis_) - 1);
}

void Group::finish_gathering() {
  const CommunicationTimer timer;
  if (materialized()) {
    gathering_.wait();
  }
  report("all_gather", gathered_bytes(), timer.seconds());
}

bool Group::written() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& m) { return version_of(m.parameter->value) != m.gathered; });
}

bool Group::written_anywhere() {
  std::int32_t flag = written() ? 1 : 0;
  const CommunicationTimer timer;
  communicator_->all_reduce(&flag, &flag, 1, DType::i32, ReduceOp::max);
  report("all_reduce", sizeof flag, timer.seconds());
  return flag != 0;
}

void Group::start_unshard() {
  if (state_ != State::sharded) {
    return;
  }
  if (materialized()) {
    whole_->restore_memory();
    if (gathered_before_ && written()) {
      whole_->bump_version();  // what autograd saved of the values before is out of date
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      Member& m = members_[i];
      const Tensor& shard = m.parameter->value.local();
      if (shard.numel() > 0 && shard.raw_data() != gather_[i].source) {
        fail(
            fmt::format("FSDP: parameter '{}' was replaced by another tensor; write into it with "
                        "ops::copy_ under NoGrad",
                        m.parameter->name));
      }
      if (m.unsharded.requires_grad() != m.parameter->value.requires_grad()) {
        set_unsharded(m, m.unsharded.local());  // it was frozen, or is no longer
      }
      m.gathered = version_of(m.parameter->value);
      gather_[i].destination = m.unsharded.local().raw_data();
    }
    gathered_before_ = true;
    gathering_ = communicator_->all_gather_async(gather_, members_[0].parameter->value.dtype());
  } else {
    if (!members_[0].unsharded) {
      plan_memory();
      const MemoryScope scope(MemoryCategory::communication);
      whole_ = Storage::none(whole_bytes_);
      for (Member& m : members_) {
        const Dims shape = local_shape(*m.whole);
        set_unsharded(
            m, from_storage(whole_, shape, contiguous_strides(shape), 0, m.whole->dtype, meta));
      }
    }
    whole_->restore_memory();
  }
  state_ = State::gathering;
}

void Group::unshard(bool again) {
  if (state_ == State::unsharded && materialized()) {
    if (again && written()) {
      whole_->bump_version();
    } else if (!again && written_anywhere()) {
      reshard();
    }
  }
  start_unshard();
  if (state_ == State::gathering) {
    finish_gathering();
    if (materialized() && written()) {
      fail(fmt::format(
          "FSDP: parameters of group '{}' were written while they were gathered; write parameters "
          "between two steps, after before_optimizer() of the parallel plan",
          name_));
    }
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
  if (whole_) {
    whole_->release_memory();
  }
  state_ = State::sharded;
  for (Member& m : members_) {
    m.parameter->computed = Tensor();
  }
}

void Group::drop_prefetch() {
  if (state_ == State::gathering) {
    reshard();
  }
}

void Group::wait_sources_free() {
  if (materialized()) {
    communicator_->wait_sources_free();
  }
}

}  // namespace fsdp
