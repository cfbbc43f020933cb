// A redistribution, step by step, on the local tensor.
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import :redistribution;
import :redistribution_steps;

namespace tessera {
namespace {

using collective::CallKind;

/// Terms that a step reduces: norms by their powers, whose sum is the whole's. In f64, as the
/// powers of what f32 holds may be more, or less, than it can hold.
Tensor terms_of(const Tensor& local, const Step& step) {
  const double order = norm_order(step);
  if (order == 0) {
    return local;
  }
  const Tensor wide = ops::cast(local, DType::f64);
  return order == 2 ? ops::square(wide) : ops::pow_scalar(ops::abs(wide), order);
}

/// The value from the reduced terms.
Tensor value_of(const Tensor& reduced, const Step& step, DType dtype) {
  const double order = norm_order(step);
  if (order == 0) {
    return reduced;
  }
  return ops::cast(order == 2 ? ops::sqrt(reduced) : ops::pow_scalar(reduced, 1 / order), dtype);
}

Tensor communicate(const Walk& walk, const ResolvedStep& resolved) {
  const Step& step = *resolved.step;
  const ops::GroupArgument group = resolved.group;
  switch (*step.kind.call()) {
    case CallKind::all_gather:
      return ops::all_gather(walk.local, step.from_dim, resolved.extent, group);
    case CallKind::all_reduce:
      return value_of(ops::all_reduce(terms_of(walk.local, step), step.op, group), step,
                      walk.how.from->dtype);
    case CallKind::reduce_scatter:
      return value_of(ops::reduce_scatter(terms_of(walk.local, step), step.to_dim, step.op, group),
                      step, walk.how.from->dtype);
    case CallKind::all_to_all:
      return ops::all_to_all(walk.local, step.from_dim, resolved.extent, step.to_dim, group);
    default:
      return exchange(walk.local, *resolved.before, *resolved.after, group);
  }
}

/// The steps of one axis that need nobody else.
Tensor rearrange(const Walk& walk, const ResolvedStep& resolved) {
  const Tensor& local = walk.local;
  const Step& step = *resolved.step;
  const ShardRange& mine = resolved.mine;
  switch (*step.kind.local()) {
    case LocalStep::slice:
      return ops::contiguous(ops::narrow(local, step.to_dim, mine.begin, mine.length));
    case LocalStep::keep_first: {
      if (walk.how.coordinates[step.axes[0]] == 0) {
        return local;
      }
      // The identity must come out of the sums and norms that are formed before: 1 is one rank's
      // term.
      bool one = step.op == ReduceOp::product;
      for (int axis = 0; axis < step.axes[0]; ++axis) {
        const Placement before = step.before.placement(axis);
        one &= !(before == Partial() || before.is_norm()) || walk.how.coordinates[axis] == 0;
      }
      return full(local.shape(), one ? 1 : 0, local.dtype(), local.device());
    }
    case LocalStep::pad: {
      Tensor whole = zeros(resolved.shape, local.dtype(), local.device());
      ops::copy_(ops::narrow(whole, step.from_dim, mine.begin, mine.length), local);
      return whole;
    }
    case LocalStep::relabel:
      break;
  }
  return local;
}

/// Elements of the buffer that a collective packs or unpacks, because a rank's part of the dim is
/// not in one piece.
std::int64_t packed_elements(const Step& step, const Dims& before, const Dims& after) {
  const auto in_pieces = [](const Dims& shape, int dim) {
    return Dims(shape.span().first(static_cast<std::size_t>(dim))).product() > 1;
  };
  switch (*step.kind.call()) {
    case CallKind::all_gather:
      return in_pieces(after, step.from_dim) ? after.product() : 0;
    case CallKind::reduce_scatter:
      return in_pieces(before, step.to_dim) ? before.product() : 0;
    case CallKind::all_to_all:
      return before.product();
    default:
      return 0;
  }
}

void record_step(const Walk& walk, const Step& step, double seconds) {
  if (communication_reported()) {
    record_communication({std::string(name_of(step.kind)), axis_names(step), step.bytes, walk.where,
                          walk.implicit, seconds});
  }
}

}  // namespace

void Walk::take() {
  const ResolvedStep& resolved = how.steps[next];
  const NoGrad no_grad;
  if (resolved.communicates) {
    IntrusivePointer<Storage>
        packed;  // for the memory plan: what the operator needs besides its result
    if (local.is_meta()) {
      packed = Storage::none(
          static_cast<std::size_t>(packed_elements(*resolved.step, local.shape(), resolved.shape)) *
          size_of(local.dtype()));
    }
    const CommunicationTimer timer;
    local = communicate(*this, resolved);
    record_step(*this, *resolved.step, timer.seconds());
  } else if (resolved.ranks > 1) {
    local = rearrange(*this, resolved);
  }
  ++next;
}

void Walk::take_all() {
  while (!ended()) {
    take();
  }
}

ops::PendingTensor Walk::issue() const {
  const ResolvedStep& resolved = how.steps[next];
  const Step& step = *resolved.step;
  const NoGrad no_grad;
  const ops::GroupArgument group = resolved.group;
  switch (*step.kind.call()) {
    case CallKind::all_gather:
      return ops::all_gather_async(local, step.from_dim, resolved.extent, group);
    case CallKind::all_reduce:
      return ops::all_reduce_async(terms_of(local, step), step.op, group);
    case CallKind::reduce_scatter:
      return ops::reduce_scatter_async(terms_of(local, step), step.to_dim, step.op, group);
    case CallKind::all_to_all:
      return ops::all_to_all_async(local, step.from_dim, resolved.extent, step.to_dim, group);
    default:
      return exchange_async(local, *resolved.before, *resolved.after, group);
  }
}

void Walk::settle(ops::PendingTensor& pending) {
  const Step& step = *how.steps[next].step;
  const CommunicationTimer timer;
  const NoGrad no_grad;
  local = value_of(pending.wait(), step, how.from->dtype);
  record_step(*this, step, timer.seconds());
  ++next;
}

Tensor carry_out_redistribution(const Tensor& x, const SpecHandle& to, bool implicit,
                                const char* where) {
  if (x.spec() == to) {
    return detached(x);
  }
  // Shared: steps call operators, which may redistribute too.
  const std::shared_ptr<const Redistribution> how = redistribution_between(*x.spec(), *to);
  Walk walk{*how, where, implicit, 0, x.local()};
  walk.take_all();
  return make_distributed(std::move(walk.local), to);
}

}  // namespace tessera
