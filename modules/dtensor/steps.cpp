// A redistribution, step by step, on the local tensor.
module;
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import :steps;

namespace tessera {
namespace {

/// The extent of a dim before the innermost cuts by the step's axes, on this rank.
std::int64_t extent_without(const Walk& walk, const Step& step, int dim) {
  Layout without = step.before;
  for (const int axis : step.axes) {
    without = without.with_placement(axis, Replicate());
  }
  return local_shape(walk.spec.shape, without, walk.coordinates)[dim];
}

const Spec& spec_of(const Walk& walk, const Layout& layout) {
  return *Spec::make(layout, walk.spec.shape, walk.spec.dtype);
}

/// What a step reduces: norms by their powers, whose sum is the whole's. In f64, as the powers of
/// what f32 holds may be more, or less, than it can hold.
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

Tensor communicate(const Walk& walk, const Step& step) {
  collective::Communicator& group = communicator(step.before.mesh(), step.axes);
  switch (step.kind) {
    case StepKind::all_gather:
      return ops::all_gather(walk.local, step.from_dim, extent_without(walk, step, step.from_dim),
                             group);
    case StepKind::all_reduce:
      return value_of(ops::all_reduce(terms_of(walk.local, step), step.op, group), step,
                      walk.spec.dtype);
    case StepKind::reduce_scatter:
      return value_of(ops::reduce_scatter(terms_of(walk.local, step), step.to_dim, step.op, group),
                      step, walk.spec.dtype);
    case StepKind::all_to_all:
      return ops::all_to_all(walk.local, step.from_dim, extent_without(walk, step, step.from_dim),
                             step.to_dim, group);
    default:
      return exchange(walk.local, spec_of(walk, step.before), spec_of(walk, step.after), group);
  }
}

/// The steps of one axis that need nobody else.
Tensor rearrange(const Walk& walk, const Step& step) {
  const Tensor& local = walk.local;
  const int ranks = rank_count(step);
  const auto index = static_cast<int>(walk.coordinates[step.axes[0]]);
  switch (step.kind) {
    case StepKind::slice: {
      const ShardRange mine = chunk_of({0, local.size(step.to_dim)}, ranks, index);
      return ops::contiguous(ops::narrow(local, step.to_dim, mine.begin, mine.length));
    }
    case StepKind::keep_first: {
      if (index == 0) {
        return local;
      }
      // The identity must come out of the sums and norms that are formed before: 1 is one rank's
      // term.
      bool one = step.op == ReduceOp::product;
      for (int axis = 0; axis < step.axes[0]; ++axis) {
        const Placement before = step.before.placement(axis);
        one &= !(before == Partial() || before.is_norm()) || walk.coordinates[axis] == 0;
      }
      return full(local.shape(), one ? 1 : 0, local.dtype(), local.device());
    }
    case StepKind::pad: {
      const std::int64_t extent = extent_without(walk, step, step.from_dim);
      Dims shape = local.shape();
      shape[step.from_dim] = extent;
      Tensor whole = zeros(shape, local.dtype(), local.device());
      const ShardRange mine = chunk_of({0, extent}, ranks, index);
      ops::copy_(ops::narrow(whole, step.from_dim, mine.begin, mine.length), local);
      return whole;
    }
    default:
      return local;
  }
}

void record_step(const Walk& walk, const Step& step, double seconds) {
  if (communication_reported()) {
    record_communication({std::string(name_of(step.kind)), axis_names(step), step.bytes, walk.where,
                          walk.implicit, seconds});
  }
}

}  // namespace

Walk begin_walk(const Tensor& x, const Spec* to, bool implicit, const char* where) {
  const Spec& from = *x.spec();
  const Plan& plan = plan_redistribute(from.layout, to->layout, from.shape, size_of(from.dtype));
  return {from, plan, my_coordinates(from.layout.mesh()), where, implicit, 0, x.local()};
}

bool Walk::communicates_next() const {
  const Step& step = plan.steps[next];
  return communicates(step.kind) && rank_count(step) > 1;
}

void Walk::take() {
  const Step& step = plan.steps[next];
  const NoGrad no_grad;
  if (local.is_meta()) {  // a trial of the layouts: shapes only, no rank needs to be there
    if (communicates_next()) {
      record_step(*this, step, 0);
    }
    local = empty(local_shape(spec.shape, step.after, coordinates), local.dtype(), meta);
  } else if (communicates_next()) {
    const CommunicationTimer timer;
    local = communicate(*this, step);
    record_step(*this, step, timer.seconds());
  } else if (rank_count(step) > 1) {
    local = rearrange(*this, step);
  }
  ++next;
}

void Walk::take_all() {
  while (next < plan.steps.size()) {
    take();
  }
}

ops::PendingTensor Walk::issue() const {
  const Step& step = plan.steps[next];
  const NoGrad no_grad;
  collective::Communicator& group = communicator(step.before.mesh(), step.axes);
  switch (step.kind) {
    case StepKind::all_gather:
      return ops::all_gather_async(local, step.from_dim, extent_without(*this, step, step.from_dim),
                                   group);
    case StepKind::all_reduce:
      return ops::all_reduce_async(terms_of(local, step), step.op, group);
    case StepKind::reduce_scatter:
      return ops::reduce_scatter_async(terms_of(local, step), step.to_dim, step.op, group);
    case StepKind::all_to_all:
      return ops::all_to_all_async(local, step.from_dim, extent_without(*this, step, step.from_dim),
                                   step.to_dim, group);
    default:
      return start_exchange(local, spec_of(*this, step.before), spec_of(*this, step.after), group);
  }
}

void Walk::settle(ops::PendingTensor& pending) {
  const CommunicationTimer timer;
  const NoGrad no_grad;
  local = value_of(pending.wait(), plan.steps[next], spec.dtype);
  record_step(*this, plan.steps[next], timer.seconds());
  ++next;
}

Tensor carry_out_redistribution(const Tensor& x, const Spec* to, bool implicit, const char* where) {
  if (x.spec() == to) {
    return detached(x);
  }
  Walk walk = begin_walk(x, to, implicit, where);
  walk.take_all();
  return make_distributed(std::move(walk.local), to);
}

}  // namespace tessera
