module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
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
  std::vector<std::int32_t> present;
  for (const nn::ParameterPointer& parameter : parameters) {
    present.push_back(parameter->value.grad() ? 1 : 0);
  }
  const std::vector<std::int32_t> mine = present;
  std::vector<int> axes(static_cast<std::size_t>(mesh->ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  const bool on_meta = parameters.front()->value.is_meta();  // a trial: no rank needs to be there
  const CommunicationTimer timer;
  if (!on_meta) {
    communicator(*mesh, axes)
        .all_reduce(present.data(), present.data(), static_cast<std::int64_t>(present.size()),
                    DType::i32);
  }
  if (communication_reported()) {
    std::vector<std::string> names;
    for (const int axis : axes) {
      names.emplace_back(mesh->axis_name(axis));
    }
    record_communication(
        {"all_reduce", fmt::format("{}", fmt::join(names, "+")),
         2 * (mesh->size() - 1) * static_cast<std::int64_t>(present.size() * sizeof present[0]) /
             mesh->size(),
         "finish_gradients", false, timer.seconds()});
  }
  for (std::size_t i = 0; !on_meta && i < present.size(); ++i) {
    if (present[i] != 0 && present[i] != mesh->size()) {
      fail(
          fmt::format("gradients: parameter '{}' has a gradient on {} of {} ranks ({} on rank {}); "
                      "all ranks must use the same parameters in a step",
                      parameters[i]->name, present[i], mesh->size(), mine[i] != 0 ? "one" : "none",
                      current_rank()));
    }
  }
}

}  // namespace

void GradientFinisher::reduce_axis(int axis, const std::vector<nn::Parameter*>& parameters) {
  std::map<DType, std::vector<nn::Parameter*>> by_type;
  for (nn::Parameter* parameter : parameters) {
    by_type[parameter->value.grad().dtype()].push_back(parameter);
  }
  const DeviceMesh& mesh = parameters.front()->value.layout().mesh();
  const std::int64_t ranks = mesh.axis_size(axis);
  const bool on_meta = parameters.front()->value.is_meta();
  collective::Communicator* const group = on_meta ? nullptr : &communicator(mesh, axis);
  for (const auto& [dtype, members] : by_type) {
    std::int64_t count = 0;
    for (const nn::Parameter* parameter : members) {
      count += parameter->value.grad().local().numel();
    }
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
    Bucket& bucket = buckets_[{axis, dtype}];
    // Gradients of an earlier step that nobody has dropped are in the old memory.
    if (bucket.bytes < bytes || bucket.memory.use_count() > 1) {
      const auto booked = static_cast<std::int64_t>(bytes);
      bucket.memory = {on_meta ? nullptr : new collective::SharedBuffer(group->allocate(bytes)),
                       [booked](collective::SharedBuffer* memory) {
                         delete memory;
                         account_memory(MemoryCategory::gradient, -booked);
                       }};
      account_memory(MemoryCategory::gradient, booked);
      bucket.bytes = bytes;
    }
    std::byte* const base = on_meta ? nullptr : bucket.memory->data();
    std::vector<Tensor> slots;
    std::int64_t at = 0;
    for (const nn::Parameter* parameter : members) {
      const Tensor& local = parameter->value.grad().local();
      slots.push_back(on_meta ? from_storage(Storage::none(), local.shape(),
                                             contiguous_strides(local.shape()), 0, dtype, meta)
                              : from_memory(base + at * static_cast<std::int64_t>(size_of(dtype)),
                                            local.shape(), dtype, bucket.memory));
      ops::copy_(slots.back(), local);
      at += local.numel();
    }
    const CommunicationTimer timer;
    if (!on_meta) {
      group->all_reduce(base, base, count, dtype);
    }
    if (communication_reported()) {
      const std::int64_t received = 2 * (ranks - 1) * static_cast<std::int64_t>(bytes) / ranks;
      record_communication({"all_reduce", mesh.axis_name(axis), received, "finish_gradients", false,
                            timer.seconds()});
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      Tensor& gradient = members[i]->value.grad();
      const Layout layout = gradient.layout().with_placement(axis, Replicate());
      gradient = make_distributed(ops::to_device(slots[i], gradient.device()),
                                  Spec::make(layout, gradient.shape(), dtype));
    }
  }
}

std::size_t GradientFinisher::shared_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [key, bucket] : buckets_) {
    bytes += bucket.bytes;
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
