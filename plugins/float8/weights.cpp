#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

#include "weights.hpp"

namespace float8 {

using namespace tessera;

namespace {

/// The dim along which FSDP has the weight sharded, which is the first one of what it gathers.
int gathered_dim(const nn::Parameter& parameter) {
  const Layout layout = parameter.value.layout();
  for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
    if (parallel::placing_style(parameter, axis) ==
            parameter.attached<parallel::ComputedForm>().style &&
        layout.placement(axis).is_shard()) {
      return layout.placement(axis).dim();
    }
  }
  return 0;
}

/// The mesh axes along which some weight is sharded.
std::vector<int> sharded_axes(const DeviceMesh& mesh,
                              const std::vector<std::shared_ptr<Weight>>& weights) {
  std::vector<int> axes;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (std::ranges::any_of(weights, [axis](const std::shared_ptr<Weight>& weight) {
          return weight->parameter->value.layout().placement(axis).is_shard();
        })) {
      axes.push_back(axis);
    }
  }
  return axes;
}

}  // namespace

std::shared_ptr<Weight> Weights::make(const nn::ParameterPointer& parameter) const {
  auto weight = std::make_shared<Weight>(Weight{.parameter = parameter});
  if (scaling_ == Scaling::tensorwise) {
    constexpr bool saved = false;  // it follows from the weight
    weight->scale = std::make_shared<nn::Buffer>(full({}, 1), saved);
  }
  return weight;
}

void Weights::add(const std::shared_ptr<Weight>& weight, const DeviceMesh& mesh) {
  all_.push_back(weight);
  mesh_ = mesh;
}

void Weights::refresh() {
  if (scaling_ != Scaling::tensorwise || all_.empty() || !mesh_) {
    return;
  }
  const NoGrad no_grad;
  const Device device = local_of(all_.front()->scale->value).device();
  std::vector<Tensor> amaxes;
  for (const auto& weight : all_) {
    const Tensor& shard = local_of(weight->parameter->value);
    amaxes.push_back(ops::to_device(largest(shard), device));
    weight->scaled_memory = &shard.storage();
    weight->scaled_version = shard.storage().version();
  }
  const Tensor amax = ops::stack(amaxes);
  if (const std::vector<int> axes = sharded_axes(*mesh_, all_); !axes.empty()) {
    const CommunicationTimer timer;
    ops::all_reduce_(amax, ReduceOp::max,
                     ops::GroupArgument::of(mesh_->group(axes, current_rank()), "float8"));
    if (communication_reported()) {
      std::string names;
      for (const int axis : axes) {
        names += (names.empty() ? "" : "+") + std::string(mesh_->axis_name(axis));
      }
      record_communication({"all_reduce", names,
                            amax.numel() * static_cast<std::int64_t>(size_of(amax.dtype())),
                            "Float8 scales", false, timer.seconds()});
    }
  }
  const Tensor scales = scale_of(amax, DType::f8e4m3);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    ops::copy_(local_of(all_[i]->scale->value),
               ops::select(scales, 0, static_cast<std::int64_t>(i)));
  }
}

void Weights::ensure() {
  const bool written = std::ranges::any_of(all_, [](const std::shared_ptr<Weight>& weight) {
    const Storage& now = local_of(weight->parameter->value).storage();
    return &now != weight->scaled_memory || now.version() != weight->scaled_version;
  });
  if (written) {
    refresh();
  }
}

QuantizedTensor Weights::codes(Weight& weight, bool keep, CodesOrder order) const {
  const nn::Parameter& parameter = *weight.parameter;
  if (const auto& payloads = parameter.attached<parallel::GatheredPayloads>().tensors;
      !payloads.empty()) {
    const Tensor& gathered = payloads.front();
    const bool turned = gathered_dim(parameter) != 0;
    return {.as_x = turned ? Tensor() : gathered,
            .turned = turned ? ops::transpose(gathered, 0, 1) : Tensor(),
            .factor = ops::reciprocal(local_of(weight.scale->value))};
  }
  const Tensor& values = local_of(parameter.use());
  const Storage& memory = values.storage();
  if (weight.codes.factor && &memory == weight.coded_memory &&
      memory.version() == weight.coded_version) {
    return weight.codes;
  }
  const bool keeps = keep && parameter.attached<parallel::ComputedForm>().style.empty();
  const QuantizedTensor codes = quantize(values, DType::f8e4m3, local_of(weight.scale->value),
                                         keeps && keeps_turned_ ? CodesOrder::both : order);
  if (keeps) {
    weight.codes = codes;
    weight.coded_memory = &memory;
    weight.coded_version = memory.version();
  }
  return codes;
}

void Weights::drop_codes() {
  for (const auto& weight : all_) {
    weight->codes = {};
  }
}

std::vector<parallel::Payload> CodesExtension::payloads(
    const parallel::GatheredParameter& gathered) const {
  return {{gathered.shape, DType::f8e4m3}};
}

void CodesExtension::pack(const parallel::GatheredParameter&, const Tensor& shard,
                          std::span<const Tensor> parts) {
  const std::shared_ptr<Weights> weights = weights_.lock();
  const std::shared_ptr<Weight> weight = weight_.lock();
  require(weights && weight, "Float8: a weight is gathered whose layer is gone");
  weights->ensure();
  ops::copy_(parts[0],
             quantize(shard, DType::f8e4m3, local_of(weight->scale->value), CodesOrder::as_x).as_x);
}

void CodesExtension::unpack(const parallel::GatheredParameter&, std::span<const Tensor>,
                            const Tensor&) {
  fail({.thing = "Float8", .wrong = "gathered codes are not unpacked: the layer reads them"});
}

}  // namespace float8
