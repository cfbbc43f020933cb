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

void Group::add(nn::ParameterPointer parameter, int dim,
                std::shared_ptr<parallel::ShardExtension> extension) {
  members_.push_back(
      {.parameter = std::move(parameter), .dim = dim, .extension = std::move(extension)});
}

bool Group::is_frozen() const {
  return std::ranges::none_of(members_,
                              [](const Member& m) { return m.parameter->value.requires_grad(); });
}

std::vector<Tensor> Group::all(Tensor Exchanged::* which) const {
  std::vector<Tensor> tensors;
  for (const Member& m : members_) {
    for (const Exchanged& x : m.exchanged) {
      tensors.push_back(x.*which);
    }
  }
  return tensors;
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
  ops::wait(members_[0].exchanged[0].whole);
  const ops::GroupArgument& ranks = keeps_ ? keeping_ranks_ : ranks_;
  report("all_gather", (keeps_ ? kept_bytes_ : part_bytes_) * (ranks.size() - 1), timer.seconds());
  drop_copies();
  if (!is_extended() || !has_values()) {
    return;
  }
  const std::uint64_t version = whole_.storage().version();
  for (Member& m : members_) {
    std::vector<Tensor> payloads;
    for (const Exchanged& x : m.exchanged) {
      payloads.push_back(x.whole);
    }
    m.extension->unpack(described(m), payloads, outermost(m.unsharded.local(), m.dim));
  }
  whole_.storage().set_version(version);
  if (kept_bytes_ == 0) {
    payloads_.storage().release_memory();
  }
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

void Group::check_shard(Member& m) {
  const Tensor& value = m.parameter->value;
  if (&value.local().storage() != &m.shard.storage()) {
    fail({.thing = "FSDP",
          .wrong = fmt::format("parameter '{}' was replaced by another tensor", m.parameter->name),
          .advice = "write into it with ops::copy_ under NoGrad"});
  }
  if (m.unsharded.requires_grad() != value.requires_grad()) {
    set_unsharded(m, m.unsharded.local());  // it was frozen, or is no longer
  }
}

void Group::start_unshard() {
  if (state_ != State::sharded) {
    return;
  }
  if (!whole_) {
    device_ = members_[0].parameter->value.device();
    plan_memory();
    prepare();
  }
  const NoGrad no_grad;
  gathered_memory().storage().restore_memory();
  if (has_values()) {
    whole_.storage().restore_memory();
  }
  const bool changed = !gathered_before_ || written();
  if (gathered_before_ && changed) {
    whole_.storage().bump_version();  // what autograd saved of the values before is out of date
  }
  for (Member& m : members_) {
    check_shard(m);
    const std::uint64_t version = version_of(m.parameter->value);
    if (changed) {
      drop_part();
    }
    const bool is_current =
        m.exchanged[0].source && version == m.gathered && m.copied == recordings();
    if (is_copied(m) && !keeps_ && !is_current) {
      copy_shard(m);
      m.copied = recordings();
    }
    m.gathered = version;
  }
  gathered_before_ = true;
  ops::all_gather_into(all(&Exchanged::whole), all(keeps_ ? &Exchanged::kept : &Exchanged::source),
                       keeps_ ? keeping_ranks_ : ranks_, identity_);
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
    if (!has_values()) {
      m.parameter->gathered.clear();
      for (const Exchanged& x : m.exchanged) {
        m.parameter->gathered.push_back(x.whole);
      }
    }
  }
}

void Group::reshard(bool between) {
  if (state_ == State::gathering) {
    finish_gathering();
  }
  if (between && state_ == State::unsharded && kept_bytes_ > 0 && !keeps_) {
    keep_part();
  }
  if (whole_) {
    whole_.storage().release_memory();
    gathered_memory().storage().release_memory();
  }
  state_ = State::sharded;
  for (Member& m : members_) {
    m.parameter->computed = Tensor();
    m.parameter->gathered.clear();
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
      for (Tensor& source : group->all(&Exchanged::source)) {
        if (source) {  // else it was dropped: its memory is kept until it is read
          read.push_back(std::move(source));
        }
      }
    }
  }
  if (!read.empty()) {
    ops::wait_readers(read, groups.front()->ranks_);
  }
}

}  // namespace fsdp
