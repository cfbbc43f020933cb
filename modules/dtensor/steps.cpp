// A redistribution, step by step, on the local tensor.
module;
#include <cstdint>
#include <span>
#include <string>
#include <utility>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;

namespace tessera {
namespace {

/// The extent of a dim before the innermost cut by `axis`, on this rank.
std::int64_t extent_without(const Spec& spec, const Layout& without_axis, int dim,
                            const Dims& coordinates) {
  return local_shape(spec.shape, without_axis, coordinates)[dim];
}

Tensor take_step(const Tensor& local, const Step& step, const Spec& spec, const Dims& coordinates) {
  const DeviceMesh& mesh = step.before.mesh();
  const int ways = mesh.axis_size(step.axis);
  const int index = static_cast<int>(coordinates[step.axis]);
  if (ways == 1) {
    return local;
  }
  if (local.is_meta()) {  // a trial of the layouts: shapes only, no rank needs to be there
    return empty(local_shape(spec.shape, step.after, coordinates), local.dtype(), meta);
  }
  switch (step.kind) {
    case StepKind::slice: {
      const ShardRange mine = chunk_of({0, local.size(step.to_dim)}, ways, index);
      return ops::contiguous(ops::narrow(local, step.to_dim, mine.begin, mine.length));
    }
    case StepKind::keep_first:
      return index == 0 ? local
                        : full(local.shape(), step.op == ReduceOp::product ? 1 : 0, local.dtype(),
                               local.device());
    case StepKind::relabel:
      return local;
    case StepKind::pad: {
      const std::int64_t extent = extent_without(spec, step.after, step.from_dim, coordinates);
      Dims shape = local.shape();
      shape[step.from_dim] = extent;
      Tensor whole = zeros(shape, local.dtype(), local.device());
      const ShardRange mine = chunk_of({0, extent}, ways, index);
      ops::copy_(ops::narrow(whole, step.from_dim, mine.begin, mine.length), local);
      return whole;
    }
    case StepKind::all_gather: {
      const std::int64_t extent = extent_without(spec, step.after, step.from_dim, coordinates);
      return ops::all_gather(local, step.from_dim, extent, communicator(mesh, step.axis));
    }
    case StepKind::all_reduce:
      return ops::all_reduce(local, step.op, communicator(mesh, step.axis));
    case StepKind::reduce_scatter:
      return ops::reduce_scatter(local, step.to_dim, step.op, communicator(mesh, step.axis));
    case StepKind::all_to_all: {
      const Layout gathered = step.before.with_placement(step.axis, Replicate());
      const std::int64_t extent = extent_without(spec, gathered, step.from_dim, coordinates);
      return ops::all_to_all(local, step.from_dim, extent, step.to_dim,
                             communicator(mesh, step.axis));
    }
  }
  return local;
}

}  // namespace

Tensor carry_out_redistribution(const Tensor& x, const Spec* to, bool implicit, const char* where) {
  const Spec& from = *x.spec();
  if (&from == to) {
    return detached(x);
  }
  const Plan& plan = plan_redistribute(from.layout, to->layout, from.shape, size_of(from.dtype));
  const Dims coordinates = my_coordinates(from.layout.mesh());
  const NoGrad no_grad;
  Tensor local = x.local();
  for (const Step& step : plan.steps) {
    local = take_step(local, step, from, coordinates);
    if (communication_reported() && communicates(step.kind) &&
        step.before.mesh().axis_size(step.axis) > 1) {
      record_communication({std::string(name_of(step.kind)),
                            step.before.mesh().axis_name(step.axis), step.bytes, where, implicit});
    }
  }
  return make_distributed(std::move(local), to);
}

}  // namespace tessera
