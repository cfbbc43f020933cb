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

#include "memory.hpp"

namespace fsdp {

using namespace tessera;

namespace {

constexpr std::int64_t slot_alignment = 64;  // bytes

std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}

/// Bytes that a tensor's slot takes.
std::int64_t slot_bytes(std::int64_t elements, DType dtype) {
  return (bytes_of(elements, dtype) + slot_alignment - 1) / slot_alignment * slot_alignment;
}

/// The tensor at a place of flat memory, which is counted in bytes.
Tensor at(const Tensor& memory, std::int64_t place, const Dims& shape, DType dtype) {
  return from_storage(memory.impl()->storage, shape, contiguous_strides(shape),
                      place / static_cast<std::int64_t>(size_of(dtype)), dtype, memory.device());
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

}  // namespace

Dims part_shape(Dims whole, int parts, int part) {
  const std::int64_t chunk = chunk_size(whole[0], parts);
  whole[0] = std::clamp<std::int64_t>(whole[0] - chunk * part, 0, chunk);
  return whole;
}

Tensor outermost(const Tensor& x, int dim) { return dim == 0 ? x : with_dim_moved(x, dim, 0); }
Dims outermost(Dims shape, int dim) {
  move_dim(shape, dim, 0);
  return shape;
}
Tensor from_outermost(const Tensor& x, int dim) { return dim == 0 ? x : with_dim_moved(x, 0, dim); }

DType stored_type(const nn::Parameter& parameter) { return parameter.value.dtype(); }
DType computed_type(const nn::Parameter& parameter) {
  return parameter.attached<parallel::ComputedForm>().dtype.value_or(stored_type(parameter));
}

namespace {

/// Where the member's shard is between uses; null: the device's memory.
const std::shared_ptr<MemoryPlace>& place_of(const Member& m) {
  return m.parameter->attached<nn::MemoryPlaces>().value;
}

}  // namespace

GroupMemory::GroupMemory(const std::string& name, DeviceMesh mesh, const Settings& settings)
    : mesh_(mesh), settings_(settings), identity_(collective::identity_of(name)) {}

void GroupMemory::add(nn::ParameterPointer parameter, int dim,
                      std::shared_ptr<parallel::ShardExtension> extension) {
  members_.push_back(
      {.parameter = std::move(parameter), .dim = dim, .extension = std::move(extension)});
}

std::vector<Tensor> GroupMemory::all(Tensor GatheredTensor::* which) const {
  std::vector<Tensor> tensors;
  for (const Member& m : members_) {
    for (const GatheredTensor& x : m.exchanged) {
      tensors.push_back(x.*which);
    }
  }
  return tensors;
}

bool GroupMemory::is_copied(const Member& m) {
  return m.dim != 0 || m.extension || place_of(m) ||
         computed_type(*m.parameter) != stored_type(*m.parameter);
}

Layout GroupMemory::along_axes(Layout layout, Placement placement) const {
  for (const int axis : settings_.axes) {
    layout = layout.with_placement(axis, placement);
  }
  return layout;
}

parallel::GatheredParameter GroupMemory::described(const Member& m) const {
  return {*m.parameter, outermost(local_shape(*m.whole), m.dim), ranks_.size(), ranks_.rank()};
}

void GroupMemory::plan() {
  const std::span<const int> ranks = mesh_.group(settings_.axes, current_rank());
  ranks_ = ops::GroupArgument::of(ranks);
  reducing_ranks_ = ops::GroupArgument::of(ranks, "reductions");
  const int keeping = static_cast<int>(settings_.options.reshard_ranks);
  if (keeping > 1) {
    const auto own = std::ranges::find(ranks, current_rank()) - ranks.begin();
    keeping_ranks_ = ops::GroupArgument::of(
        ranks.subspan(static_cast<std::size_t>(own / keeping * keeping), keeping), "kept");
  }
  gathered_bytes_ = part_bytes_ = slot_bytes_ = whole_bytes_ = payload_bytes_ = kept_bytes_ = 0;
  for (Member& m : members_) {
    const Tensor& value = m.parameter->value;
    const DType dtype = computed_type(*m.parameter);
    m.whole = Spec::make(along_axes(value.layout(), Replicate()), value.shape(), dtype);
    const Dims shape = outermost(local_shape(*m.whole), m.dim);
    m.offset = whole_bytes_;
    whole_bytes_ += slot_bytes(shape.product(), dtype);
    m.slot = slot_bytes_;
    slot_bytes_ += is_copied(m) ? 0 : slot_bytes(part_elements(shape, ranks_.size()), dtype);
    m.payloads = m.extension ? m.extension->payloads(described(m))
                             : std::vector<parallel::Payload>{{shape, dtype}};
    m.exchanged.resize(m.payloads.size());
    for (const auto& [payload, type] : m.payloads) {
      gathered_bytes_ += bytes_of(payload.product(), type);
      part_bytes_ += bytes_of(part_shape(payload, ranks_.size(), ranks_.rank()).product(), type);
      payload_bytes_ += m.extension ? slot_bytes(payload.product(), type) : 0;
      if (can_keep()) {
        kept_bytes_ +=
            bytes_of(part_shape(payload, keeping, keeping_ranks_.rank()).product(), type);
      }
    }
  }
}

void GroupMemory::set_unsharded(Member& m, Tensor local) const {
  m.unsharded = make_distributed(std::move(local), m.whole);
  if (m.parameter->value.requires_grad()) {
    m.unsharded.set_requires_grad();
    add_post_accumulate_hook(m.unsharded,
                             [arrived = m.arrived, notify = settings_.gradient_arrived](Tensor&) {
                               *arrived = true;
                               notify();
                             });
  }
}

void GroupMemory::materialize(Device device) {
  device_ = device;
  plan();
  const MemoryScope scope(MemoryCategory::parameter);
  const bool shared = device == cpu && slot_bytes_ > 0;
  const Tensor memory = shared ? ops::shared_empty({slot_bytes_}, DType::u8, ranks_) : Tensor();
  for (Member& m : members_) {
    Tensor& value = m.parameter->value;
    const SpecHandle sharded = value.spec();
    const bool trained = value.requires_grad();
    const Dims shape = local_shape(*sharded);
    const DType dtype = stored_type(*m.parameter);
    // Each shard has a storage of its own, which counts its writes, over the memory of all.
    if (const auto& place = place_of(m)) {
      m.shard = allocate_in(*place, shape, dtype, device);
    } else if (shared && !is_copied(m)) {
      m.shard = from_memory(at(memory, m.slot, shape, dtype).raw_data(), shape, dtype,
                            std::make_shared<Tensor>(memory));
    } else {
      m.shard = empty(shape, dtype, device);
    }
    value = make_distributed(m.shard, sharded);
    value.set_requires_grad(trained);
  }
  prepare();
}

void GroupMemory::prepare() {
  {
    // Without values it is released for good below: no gather ever needs it.
    const MemoryScope scope(has_values() ? MemoryCategory::communication : MemoryCategory::other);
    whole_ = empty({whole_bytes_}, DType::u8, device_);
  }
  {
    const MemoryScope scope(MemoryCategory::communication);
    payloads_ = is_extended() ? empty({payload_bytes_}, DType::u8, device_) : Tensor();
  }
  std::int64_t place = 0;
  for (Member& m : members_) {
    m.shard = m.parameter->value.local();
    const Dims shape = outermost(local_shape(*m.whole), m.dim);
    const Tensor values = at(whole_, m.offset, shape, computed_type(*m.parameter));
    set_unsharded(m, from_outermost(values, m.dim));
    for (std::size_t i = 0; i < m.payloads.size(); ++i) {
      const auto& [payload, type] = m.payloads[i];
      m.exchanged[i] = {.whole = m.extension ? at(payloads_, place, payload, type) : values,
                        .source = is_copied(m) ? Tensor() : m.shard};
      place += slot_bytes(payload.product(), type);
    }
  }
}

void GroupMemory::adopt_shards() {
  device_ = members_[0].parameter->value.device();
  plan();
  prepare();
}

void GroupMemory::release() {
  if (is_made()) {
    whole_.storage().release_memory();
    gathered().storage().release_memory();
  }
}

void GroupMemory::restore() {
  gathered().storage().restore_memory();
  if (has_values()) {
    whole_.storage().restore_memory();
  }
}

void GroupMemory::copy_shard(Member& m) const {
  const auto& place = place_of(m);
  const MemoryScope scope(place ? MemoryCategory::communication : MemoryCategory::parameter);
  const PeersReadScope read;
  const Tensor shard = outermost(ops::to_device(m.shard, device_), m.dim);
  for (GatheredTensor& x : m.exchanged) {
    x.source = Tensor();
  }
  if (!m.extension) {
    Tensor& source = m.exchanged[0].source;
    source = ops::contiguous(ops::cast(shard, computed_type(*m.parameter)));
    if (&source.storage() == &m.shard.storage()) {
      source = ops::clone(source);
    }
    return;
  }
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < m.payloads.size(); ++i) {
    const auto& [shape, type] = m.payloads[i];
    parts.push_back(empty(part_shape(shape, ranks_.size(), ranks_.rank()), type, device_));
    m.exchanged[i].source = parts.back();
  }
  m.extension->pack(described(m), shard, parts);
}

void GroupMemory::drop_copies() {
  std::vector<Tensor> copies;
  for (Member& m : members_) {
    if (const auto& place = place_of(m)) {
      if (!m.shard.is_meta()) {
        place->put_away(m.shard);
      }
      for (GatheredTensor& x : m.exchanged) {
        copies.push_back(std::exchange(x.source, Tensor()));
      }
    }
  }
  if (!copies.empty()) {
    *settings_.copies = std::move(copies);
  }
}

void GroupMemory::fetch() const {
  for (const Member& m : members_) {
    if (const auto& place = place_of(m); place && m.shard && !m.shard.is_meta()) {
      place->fetch(m.shard);
    }
  }
}

void GroupMemory::keep_part() {
  const NoGrad no_grad;
  const MemoryScope scope(MemoryCategory::communication);
  const PeersReadScope read;
  const int parts = keeping_ranks_.size();
  for (Member& m : members_) {
    for (GatheredTensor& x : m.exchanged) {
      const std::int64_t extent = x.whole.shape()[0];
      const std::int64_t first =
          std::min(extent, chunk_size(extent, parts) * keeping_ranks_.rank());
      x.kept =
          ops::clone(alias(x.whole, part_shape(x.whole.shape(), parts, keeping_ranks_.rank()),
                           x.whole.strides(), x.whole.offset() + first * x.whole.strides()[0]));
    }
  }
  keeps_ = true;
}

void GroupMemory::drop_part() {
  keeps_ = false;
  for (Member& m : members_) {
    for (GatheredTensor& x : m.exchanged) {
      x.kept = Tensor();
    }
  }
}

}  // namespace fsdp
