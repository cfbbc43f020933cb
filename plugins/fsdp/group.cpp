#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
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

/// One of `parts` parts of a whole with the sharded dim outermost.
Dims part_shape(Dims whole, int parts, int part) {
  const std::int64_t chunk = chunk_size(whole[0], parts);
  whole[0] = std::clamp<std::int64_t>(whole[0] - chunk * part, 0, chunk);
  return whole;
}

/// Elements of a full part.
std::int64_t part_elements(const Dims& whole, int parts) {
  return part_shape(whole, parts, 0).product();
}

void move_dim(Dims& extents, int from, int to) {
  const std::int64_t extent = extents[from];
  extents.erase(from);
  extents.insert(to, extent);
}

Tensor with_dim_moved(const Tensor& x, int from, int to) {
  Dims shape = x.shape();
  Dims strides = x.strides();
  move_dim(shape, from, to);
  move_dim(strides, from, to);
  return alias(x, shape, strides, x.offset());
}

std::uint64_t version_of(const Tensor& shard) { return shard.local().storage().version(); }

}  // namespace

Tensor outermost(const Tensor& x, int dim) { return dim == 0 ? x : with_dim_moved(x, dim, 0); }
Dims outermost(Dims shape, int dim) {
  move_dim(shape, dim, 0);
  return shape;
}
Tensor from_outermost(const Tensor& x, int dim) { return dim == 0 ? x : with_dim_moved(x, 0, dim); }

DType Group::computed_type() const {
  return members_[0].parameter->compute_dtype.value_or(stored_type());
}

bool Group::is_copied(const Member& m) const {
  return m.dim != 0 || computed_type() != stored_type();
}

Layout Group::along_axes(Layout layout, Placement placement) const {
  for (const int axis : settings_.axes) {
    layout = layout.with_placement(axis, placement);
  }
  return layout;
}

void Group::plan_memory() {
  const DType dtype = computed_type();
  const std::span<const int> ranks = mesh_.group(settings_.axes, current_rank());
  ranks_ = ops::GroupArgument::of(ranks);
  reducing_ranks_ = ops::GroupArgument::of(ranks, "reductions");
  const int keeping = static_cast<int>(settings_.reshard_ranks);
  if (keeping > 1) {
    const auto own = std::ranges::find(ranks, current_rank()) - ranks.begin();
    keeping_ranks_ = ops::GroupArgument::of(
        ranks.subspan(static_cast<std::size_t>(own / keeping * keeping), keeping), "kept");
  }
  shard_elements_ = slot_elements_ = whole_elements_ = kept_elements_ = 0;
  for (Member& m : members_) {
    const Tensor& value = m.parameter->value;
    m.whole = Spec::make(along_axes(value.layout(), Replicate()), value.shape(), dtype);
    const Dims shape = outermost(local_shape(*m.whole), m.dim);
    const std::int64_t part = part_elements(shape, static_cast<int>(ranks.size()));
    shard_elements_ += aligned(part, dtype);
    m.slot = slot_elements_;
    slot_elements_ += is_copied(m) ? 0 : aligned(part, dtype);
    m.offset = whole_elements_;
    whole_elements_ += aligned(shape.product(), dtype);
    kept_elements_ += keeping > 1 ? aligned(part_elements(shape, keeping), dtype) : 0;
  }
  identity_ = collective::identity_of(name_);
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
  const MemoryScope scope(MemoryCategory::parameter);
  const DType dtype = stored_type();
  const bool shared = device == cpu && slot_elements_ > 0;
  const Tensor memory = shared ? ops::shared_empty({slot_elements_}, dtype, ranks_) : Tensor();
  for (Member& m : members_) {
    Tensor& value = m.parameter->value;
    const SpecHandle sharded = value.spec();
    const bool trained = value.requires_grad();
    const Dims shape = local_shape(*sharded);
    // Each shard has a storage of its own, which counts its writes, over the memory of all.
    m.shard = shared && !is_copied(m) ? from_memory(at(memory, m.slot, shape).raw_data(), shape,
                                                    dtype, std::make_shared<Tensor>(memory))
                                      : empty(shape, dtype, device);
    value = make_distributed(m.shard, sharded);
    value.set_requires_grad(trained);
  }
  prepare();
}

void Group::prepare() {
  const Device device = members_[0].parameter->value.device();
  {
    const MemoryScope scope(MemoryCategory::communication);
    whole_ = empty({whole_elements_}, computed_type(), device);
  }
  for (Member& m : members_) {
    m.shard = m.parameter->value.local();
    m.source = is_copied(m) ? Tensor() : m.shard;
    const Dims shape = outermost(local_shape(*m.whole), m.dim);
    set_unsharded(m, from_outermost(at(whole_, m.offset, shape), m.dim));
  }
  reshard();
}

/// Writes what peers gather of a member whose shard they do not read.
void Group::copy_shard(Member& m) const {
  const MemoryScope scope(MemoryCategory::parameter);
  const PeersReadScope read;
  m.source = Tensor();
  m.source = ops::contiguous(ops::cast(outermost(m.shard, m.dim), computed_type()));
}

std::vector<Tensor> Group::sources() const {
  std::vector<Tensor> all;
  for (const Member& m : members_) {
    all.push_back(m.source);
  }
  return all;
}

std::vector<Tensor> Group::kept() const {
  std::vector<Tensor> all;
  for (const Member& m : members_) {
    all.push_back(m.kept);
  }
  return all;
}

std::vector<Tensor> Group::wholes() const {
  std::vector<Tensor> all;
  for (const Member& m : members_) {
    all.push_back(outermost(m.unsharded.local(), m.dim));
  }
  return all;
}

/// Puts a collective into the communication report.
void Group::report(const char* operation, std::int64_t bytes, double seconds) const {
  if (communication_reported()) {
    std::string axes;
    for (const int axis : settings_.axes) {
      axes += (axes.empty() ? "" : "+") + std::string(mesh_.axis_name(axis));
    }
    record_communication({operation, axes, bytes, "FSDP " + name_, false, seconds});
  }
}

/// A rank receives a padded part of each other.
std::int64_t Group::received_bytes(std::int64_t elements, std::size_t ranks) const {
  return elements * static_cast<std::int64_t>(size_of(computed_type()) * (ranks - 1));
}

void Group::finish_gathering() {
  const NoGrad no_grad;
  const CommunicationTimer timer;
  ops::wait(outermost(members_[0].unsharded.local(), members_[0].dim));
  report("all_gather",
         keeps_ ? received_bytes(kept_elements_, static_cast<std::size_t>(keeping_ranks_.size()))
                : received_bytes(shard_elements_, static_cast<std::size_t>(ranks_.size())),
         timer.seconds());
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
  const bool changed = !gathered_before_ || written();
  if (gathered_before_ && changed) {
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
    const std::uint64_t version = version_of(m.parameter->value);
    if (is_copied(m) && (!gathered_before_ || version != m.gathered)) {
      copy_shard(m);
    }
    m.gathered = version;
  }
  gathered_before_ = true;
  if (changed) {
    drop_part();
  }
  if (keeps_) {
    ops::all_gather_into(wholes(), kept(), keeping_ranks_, identity_);
  } else {
    ops::all_gather_into(wholes(), sources(), ranks_, identity_);
  }
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

/// Copies this rank's part of the whole values, for the gather of backward.
void Group::keep_part() {
  const NoGrad no_grad;
  const MemoryScope scope(MemoryCategory::communication);
  const PeersReadScope read;
  for (Member& m : members_) {
    const Tensor whole = outermost(m.unsharded.local(), m.dim);
    const Dims shape = part_shape(whole.shape(), keeping_ranks_.size(), keeping_ranks_.rank());
    const std::int64_t first =
        std::min(whole.shape()[0],
                 chunk_size(whole.shape()[0], keeping_ranks_.size()) * keeping_ranks_.rank());
    m.kept = ops::clone(
        alias(whole, shape, whole.strides(), whole.offset() + first * whole.strides()[0]));
  }
  keeps_ = true;
}

void Group::drop_part() {
  keeps_ = false;
  for (Member& m : members_) {
    m.kept = Tensor();
  }
}

void Group::reshard(bool between) {
  if (state_ == State::gathering) {
    finish_gathering();
  }
  if (between && state_ == State::unsharded && kept_elements_ > 0 && !keeps_) {
    keep_part();
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
  std::vector<Tensor> read;
  for (const Group* group : groups) {
    if (group->gathered_before_) {
      const std::vector<Tensor> own = group->sources();
      read.insert(read.end(), own.begin(), own.end());
    }
  }
  if (!read.empty()) {
    ops::wait_readers(read, groups.front()->ranks_);
  }
}

}  // namespace fsdp
