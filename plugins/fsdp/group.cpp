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
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

#include "group.hpp"

namespace fsdp {

using namespace tessera;

namespace {

constexpr std::int64_t slot_alignment = 64;  // bytes

/// Elements that a tensor's slot takes.
std::int64_t aligned(std::int64_t elements, DType dtype) {
  const std::int64_t unit = slot_alignment / static_cast<std::int64_t>(size_of(dtype));
  return (elements + unit - 1) / unit * unit;
}

/// The tensor of this shape at a place of flat memory.
Tensor at(const Tensor& memory, std::int64_t offset, const Dims& shape) {
  return alias(memory, shape, contiguous_strides(shape), offset);
}

std::uint64_t version_of(const Tensor& shard) { return shard.local().storage().version(); }

}  // namespace

void Group::plan_memory() {
  const int ranks = mesh_.axis_size(axis_);
  shard_elements_ = 0;
  whole_elements_ = 0;
  for (Member& m : members_) {
    const Tensor& value = m.parameter->value;
    m.whole =
        Spec::make(value.layout().with_placement(axis_, Replicate()), value.shape(), value.dtype());
    const Dims shape = local_shape(*m.whole);
    const std::int64_t total = shape.product();
    const std::int64_t row = shape[0] > 0 ? total / shape[0] : 0;
    m.slot = shard_elements_;
    shard_elements_ += aligned(chunk_size(shape[0], ranks) * row, value.dtype());
    m.offset = whole_elements_;
    whole_elements_ += aligned(total, value.dtype());
  }
  ranks_ = ops::GroupArgument::of(mesh_.group(axis_, current_rank()));
  reducing_ranks_ = ops::GroupArgument::of(mesh_.group(axis_, current_rank()), "reductions");
  identity_ = static_cast<std::int64_t>(std::hash<std::string>{}(name_)&std::size_t{0x7fffffff});
}

void Group::set_unsharded(Member& m, Tensor local) {
  m.unsharded = make_distributed(std::move(local), m.whole);
  if (m.parameter->value.requires_grad()) {
    m.unsharded.set_requires_grad();
    add_post_accumulate_hook(m.unsharded, [arrived = m.arrived](Tensor&) { *arrived = true; });
  }
}

void Group::materialize(Device device) {
  plan_memory();
  const DType dtype = members_[0].parameter->value.dtype();
  const MemoryScope scope(MemoryCategory::parameter);
  const bool shared = device == cpu;
  const Tensor memory = shared ? ops::shared_empty({shard_elements_}, dtype, ranks_) : Tensor();
  for (Member& m : members_) {
    Tensor& value = m.parameter->value;
    const SpecHandle sharded = value.spec();
    const bool trained = value.requires_grad();
    const Dims shape = local_shape(*sharded);
    // Each shard has a storage of its own, which counts its writes, over the memory of all.
    m.shard = shared ? from_memory(at(memory, m.slot, shape).raw_data(), shape, dtype,
                                   std::make_shared<Tensor>(memory))
                     : empty(shape, dtype, device);
    value = make_distributed(m.shard, sharded);
    value.set_requires_grad(trained);
  }
  prepare();
}

void Group::prepare() {
  const Tensor& first = members_[0].parameter->value;
  {
    const MemoryScope scope(MemoryCategory::communication);
    whole_ = empty({whole_elements_}, first.dtype(), first.device());
  }
  for (Member& m : members_) {
    m.shard = m.parameter->value.local();
    set_unsharded(m, at(whole_, m.offset, local_shape(*m.whole)));
  }
  reshard();
}

std::vector<Tensor> Group::shards() const {
  std::vector<Tensor> all;
  for (const Member& m : members_) {
    all.push_back(m.shard);
  }
  return all;
}

std::vector<Tensor> Group::wholes() const {
  std::vector<Tensor> all;
  for (const Member& m : members_) {
    all.push_back(m.unsharded.local());
  }
  return all;
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
  const std::size_t element = size_of(members_[0].parameter->value.dtype());
  return shard_elements_ * static_cast<std::int64_t>(element) * (mesh_.axis_size(axis_) - 1);
}

void Group::finish_gathering() {
  const NoGrad no_grad;
  const CommunicationTimer timer;
  ops::wait(members_[0].unsharded.local());
  report("all_gather", gathered_bytes(), timer.seconds());
}

bool Group::written() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& m) { return version_of(m.parameter->value) != m.gathered; });
}

bool Group::written_anywhere() {
  const NoGrad no_grad;
  const Tensor flag = full({1}, written() ? 1 : 0, DType::i32, whole_.device());
  const CommunicationTimer timer;
  ops::all_reduce_(flag, ReduceOp::max, ranks_);
  report("all_reduce", sizeof(std::int32_t), timer.seconds());
  return flag.item() != 0;
}

void Group::start_unshard() {
  if (state_ != State::sharded) {
    return;
  }
  if (!whole_) {
    plan_memory();
    prepare();
  }
  const NoGrad no_grad;
  whole_.storage().restore_memory();
  if (gathered_before_ && written()) {
    whole_.storage().bump_version();  // what autograd saved of the values before is out of date
  }
  for (Member& m : members_) {
    if (&m.parameter->value.local().storage() != &m.shard.storage()) {
      fail(
          {.thing = "FSDP",
           .wrong = fmt::format("parameter '{}' was replaced by another tensor", m.parameter->name),
           .advice = "write into it with ops::copy_ under NoGrad"});
    }
    if (m.unsharded.requires_grad() != m.parameter->value.requires_grad()) {
      set_unsharded(m, m.unsharded.local());  // it was frozen, or is no longer
    }
    m.gathered = version_of(m.parameter->value);
  }
  gathered_before_ = true;
  ops::all_gather_into(wholes(), shards(), ranks_, identity_);
  state_ = State::gathering;
}

void Group::unshard(bool again) {
  if (state_ == State::unsharded) {
    if (again && written()) {
      whole_.storage().bump_version();
    } else if (!again && written_anywhere()) {
      reshard();
    }
  }
  start_unshard();
  if (state_ == State::gathering) {
    finish_gathering();
    if (written()) {
      fail({.thing = "FSDP",
            .wrong = fmt::format("parameters of group '{}' were written while they were gathered",
                                 name_),
            .advice = "write parameters between two steps, after before_optimizer() of the "
                      "parallel plan"});
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
    whole_.storage().release_memory();
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

void Group::wait_readers(const std::vector<const Group*>& groups) {
  const NoGrad no_grad;
  std::vector<Tensor> shards;
  for (const Group* group : groups) {
    if (group->whole_) {  // else nothing was gathered
      const std::vector<Tensor> own = group->shards();
      shards.insert(shards.end(), own.begin(), own.end());
    }
  }
  if (!shards.empty()) {
    ops::wait_readers(shards, groups.front()->ranks_);
  }
}

}  // namespace fsdp
