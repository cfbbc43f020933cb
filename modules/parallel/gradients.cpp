module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

namespace tessera::parallel {
namespace {

bool& sync_flag() {
  thread_local bool enabled = true;
  return enabled;
}

}  // namespace

bool gradient_sync_enabled() { return sync_flag(); }
GradientSyncScope::GradientSyncScope(bool enabled) : before_(std::exchange(sync_flag(), enabled)) {}
GradientSyncScope::~GradientSyncScope() { sync_flag() = before_; }

namespace {

/// The mesh of the parameters whose gradients ranks have in common; none where there is one rank.
const DeviceMesh* shared_mesh(std::span<const nn::ParameterPointer> parameters) {
  for (const nn::ParameterPointer& parameter : parameters) {
    if (parameter->value.is_distributed()) {
      const DeviceMesh& mesh = parameter->value.layout().mesh();
      return mesh.size() > 1 ? &mesh : nullptr;
    }
  }
  return nullptr;
}

/// A parameter without a gradient must have none on every rank: ranks would pair the sums of
/// different parameters, or wait for each other.
void check_presence(std::span<const nn::ParameterPointer> parameters) {
  const DeviceMesh* const mesh = shared_mesh(parameters);
  if (mesh == nullptr) {
    return;
  }
  std::vector<std::int32_t> mine;
  for (const nn::ParameterPointer& parameter : parameters) {
    mine.push_back(parameter->value.grad() ? 1 : 0);
  }
  std::vector<int> axes(static_cast<std::size_t>(mesh->ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  const Dims shape = {static_cast<std::int64_t>(mine.size())};
  const bool on_meta = parameters.front()->value.is_meta();  // a trial: nothing can be compared
  const Tensor present = on_meta ? empty(shape, DType::i32, meta)
                                 : from_values(std::span<const std::int32_t>(mine), shape);
  const CommunicationTimer timer;
  ops::all_reduce_(present, ReduceOp::sum,
                   ops::GroupArgument::of(mesh->group(axes, current_rank())));
  if (communication_reported()) {
    std::vector<std::string> names;
    for (const int axis : axes) {
      names.emplace_back(mesh->axis_name(axis));
    }
    record_communication(
        {"all_reduce", fmt::format("{}", fmt::join(names, "+")),
         2 * (mesh->size() - 1) * static_cast<std::int64_t>(mine.size() * sizeof mine[0]) /
             mesh->size(),
         "finish_gradients", false, timer.seconds()});
  }
  const std::vector<double> counts = on_meta ? std::vector<double>() : to_doubles(present);
  for (const auto& [count, parameter, own] : ranges::views::zip(counts, parameters, mine)) {
    if (count != 0 && count != mesh->size()) {
      fail({.thing = "gradients",
            .wrong = fmt::format("parameter '{}' has a gradient on {} of {} ranks ({} on rank {})",
                                 parameter->name, count, mesh->size(), own != 0 ? "one" : "none",
                                 current_rank()),
            .advice = "all ranks must use the same parameters in a step"});
    }
  }
}

}  // namespace

Tensor GradientFinisher::buffer(const DeviceMesh& mesh, int axis, DType dtype,
                                std::int64_t elements, Device device) {
  Tensor& memory = buffers_[{axis, dtype}];
  // Gradients of an earlier step that nobody has dropped are in the old memory.
  if (!memory || memory.numel() < elements || memory.storage().references() > 1) {
    memory = Tensor();
    const MemoryScope scope(MemoryCategory::gradient);
    memory = ops::shared_empty({elements}, dtype,
                               ops::GroupArgument::of(mesh.group(axis, current_rank())), device);
  }
  return alias(memory, {elements}, {1}, 0);
}

void GradientFinisher::reduce_axis(int axis, const std::vector<nn::Parameter*>& parameters) {
  std::map<DType, std::vector<nn::Parameter*>> by_type;
  for (nn::Parameter* parameter : parameters) {
    by_type[parameter->value.grad().dtype()].push_back(parameter);
  }
  const DeviceMesh& mesh = parameters.front()->value.layout().mesh();
  const std::int64_t ranks = mesh.axis_size(axis);
  const Device device = parameters.front()->value.grad().device();
  for (const auto& [dtype, members] : by_type) {
    std::int64_t count = 0;
    for (const nn::Parameter* parameter : members) {
      count += parameter->value.grad().local().numel();
    }
    const Tensor flat = buffer(mesh, axis, dtype, count, device);
    std::vector<Tensor> slots;
    std::int64_t at = 0;
    for (const nn::Parameter* parameter : members) {
      const Tensor& local = parameter->value.grad().local();
      slots.push_back(alias(flat, local.shape(), contiguous_strides(local.shape()), at));
      ops::copy_(slots.back(), local);
      at += local.numel();
    }
    const CommunicationTimer timer;
    ops::all_reduce_(flat, ReduceOp::sum, ops::GroupArgument::of(mesh.group(axis, current_rank())));
    if (communication_reported()) {
      const std::int64_t received =
          2 * (ranks - 1) * count * static_cast<std::int64_t>(size_of(dtype)) / ranks;
      record_communication({"all_reduce", mesh.axis_name(axis), received, "finish_gradients", false,
                            timer.seconds()});
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      Tensor& gradient = members[i]->value.grad();
      const Layout layout = gradient.layout().with_placement(axis, Replicate());
      gradient = make_distributed(slots[i], Spec::make(layout, gradient.shape(), dtype));
    }
  }
}

std::size_t GradientFinisher::shared_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [key, memory] : buffers_) {
    bytes += static_cast<std::size_t>(memory.numel()) * size_of(memory.dtype());
  }
  return bytes;
}

void GradientFinisher::finish(std::span<const nn::ParameterPointer> parameters) {
  run_phase("gradient reduction", [&] { reduce(parameters); });
}

void GradientFinisher::reduce(std::span<const nn::ParameterPointer> parameters) {
  const NoGrad no_grad;
  check_presence(parameters);
  std::map<int, std::vector<nn::Parameter*>> partial;
  for (const nn::ParameterPointer& parameter : parameters) {
    const Tensor& value = parameter->value;
    if (!value.grad() || !value.is_distributed()) {
      continue;
    }
    for (int axis = 0; axis < value.layout().ndim(); ++axis) {
      if (value.grad().layout().placement(axis) == Partial() &&
          value.layout().placement(axis).is_replicate()) {
        partial[axis].push_back(parameter.get());
      }
    }
  }
  for (const auto& [axis, members] : partial) {
    reduce_axis(axis, members);
  }
  for (const nn::ParameterPointer& parameter : parameters) {
    const Tensor& value = parameter->value;
    if (value.grad() && value.is_distributed() && !(value.grad().layout() == value.layout())) {
      value.grad() = redistribute(value.grad(), value.layout());
    }
  }
}

}  // namespace tessera::parallel
