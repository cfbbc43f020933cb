// When a group gathers and frees.
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

std::uint64_t version_of(const Tensor& shard) { return shard.local().storage().version(); }

}  // namespace

void Group::materialize(Device device) {
  memory_.materialize(device);
  reshard();
}

bool Group::is_frozen() const {
  return std::ranges::none_of(memory_.members(),
                              [](const Member& m) { return m.parameter->value.requires_grad(); });
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

void Group::finish_gathering() {
  const NoGrad no_grad;
  const CommunicationTimer timer;
  ops::wait(memory_.members()[0].exchanged[0].whole);
  report("all_gather", memory_.received_bytes(), timer.seconds());
  memory_.drop_copies();
  if (!memory_.is_extended() || !memory_.has_values()) {
    return;
  }
  const std::uint64_t version = memory_.whole().storage().version();
  for (Member& m : memory_.members()) {
    std::vector<Tensor> payloads;
    for (const GatheredTensor& x : m.exchanged) {
      payloads.push_back(x.whole);
    }
    m.extension->unpack(memory_.described(m), payloads, outermost(m.unsharded.local(), m.dim));
  }
  memory_.whole().storage().set_version(version);
  if (!memory_.can_keep()) {
    memory_.gathered().storage().release_memory();
  }
}

bool Group::written() const {
  return std::any_of(memory_.members().begin(), memory_.members().end(),
                     [](const Member& m) { return version_of(m.parameter->value) != m.gathered; });
}

bool Group::written_anywhere() {
  const NoGrad no_grad;
  const Tensor flag = full({1}, written() ? 1 : 0, DType::i32, memory_.whole().device());
  const CommunicationTimer timer;
  ops::all_reduce_(flag, ReduceOp::max, memory_.ranks());
  report("all_reduce", sizeof(std::int32_t), timer.seconds());
  return flag.item() != 0;
}

void Group::check_shard(Member& m) const {
  const Tensor& value = m.parameter->value;
  if (&value.local().storage() != &m.shard.storage()) {
    fail({.thing = "FSDP",
          .wrong = fmt::format("parameter '{}' was replaced by another tensor", m.parameter->name),
          .advice = "write into it with ops::copy_ under NoGrad"});
  }
  if (m.unsharded.requires_grad() != value.requires_grad()) {
    memory_.set_unsharded(m, m.unsharded.local());  // it was frozen, or is no longer
  }
}

void Group::start_unshard() {
  if (state_ != State::sharded) {
    return;
  }
  if (!memory_.is_made()) {
    memory_.adopt_shards();
    reshard();
  }
  const NoGrad no_grad;
  memory_.restore();
  const bool changed = !gathered_before_ || written();
  if (gathered_before_ && changed) {
    memory_.whole()
        .storage()
        .bump_version();  // what autograd saved of the values before is out of date
  }
  for (Member& m : memory_.members()) {
    check_shard(m);
    const std::uint64_t version = version_of(m.parameter->value);
    if (changed) {
      memory_.drop_part();
    }
    const bool is_current =
        m.exchanged[0].source && version == m.gathered && m.copied == recordings();
    if (GroupMemory::is_copied(m) && !memory_.keeps() && !is_current) {
      memory_.copy_shard(m);
      m.copied = recordings();
    }
    m.gathered = version;
  }
  gathered_before_ = true;
  ops::all_gather_into(
      memory_.all(&GatheredTensor::whole),
      memory_.all(memory_.keeps() ? &GatheredTensor::kept : &GatheredTensor::source),
      memory_.gathering_ranks(), memory_.identity());
  state_ = State::gathering;
}

void Group::unshard(bool again) {
  const std::uint64_t order = step_context().order;
  if (state_ == State::unsharded) {
    const bool all_alike = order != 0 && order == unsharded_in_;
    if (again && written()) {
      memory_.whole().storage().bump_version();
    } else if (!again && (all_alike ? written() : written_anywhere())) {
      reshard();
    }
  }
  unsharded_in_ = order;
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
  for (Member& m : memory_.members()) {
    m.parameter->computed = m.unsharded;
    if (!memory_.has_values()) {
      std::vector<Tensor>& gathered = m.parameter->attach<parallel::GatheredPayloads>().tensors;
      gathered.clear();
      for (const GatheredTensor& x : m.exchanged) {
        gathered.push_back(x.whole);
      }
    }
  }
}

void Group::reshard(bool between) {
  if (state_ == State::gathering) {
    finish_gathering();
  }
  if (between && state_ == State::unsharded && memory_.can_keep() && !memory_.keeps()) {
    memory_.keep_part();
  }
  memory_.release();
  state_ = State::sharded;
  for (Member& m : memory_.members()) {
    m.parameter->computed = Tensor();
    if (!memory_.has_values()) {
      m.parameter->attach<parallel::GatheredPayloads>().tensors.clear();
    }
  }
}

void Group::fetch() const {
  if (state_ == State::sharded && !memory_.keeps()) {
    memory_.fetch();
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
    if (!group->gathered_before_) {
      continue;
    }
    for (const Member& m : group->memory_.members()) {
      // A copy of an earlier recording was gathered in that one, which has waited for its readers.
      const bool is_old = GroupMemory::is_copied(m) && m.copied != recordings();
      for (const GatheredTensor& x : m.exchanged) {
        if (x.source && !is_old) {  // else it was dropped: its memory is kept until it is read
          read.push_back(x.source);
        }
      }
    }
  }
  if (!read.empty()) {
    ops::wait_readers(read, groups.front()->memory_.ranks());
  }
}

}  // namespace fsdp
