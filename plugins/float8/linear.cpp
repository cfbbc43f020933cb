#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

#include "linear.hpp"

namespace float8 {

using namespace tessera;

namespace {

constexpr std::int64_t alignment = 16;  // of the extents of scaled products, as torchao has it

/// What backward needs of a forward.
struct SavedForward {
  std::shared_ptr<Weights> weights;
  std::shared_ptr<Weight> weight;
  SavedTensor values;  // what the weight's layer computed with: to see that it stays
  SavedTensor x;       // row-wise: its columns get scales of their own
  Operand codes;       // of x, contiguous along its rows; tensor-wise
  DType x_type = DType::f32;
  bool needs_x = false;
  bool needs_weight = false;
};

/// Codes of this rank's part of a tensor with the layout and shape of the whole.
struct ShardedCodes {
  QuantizedTensor local;
  Layout layout;
  Dims shape;

  /// For a product that sums over the last dim, or over the others.
  Operand along_last() const { return operand(local.along_last(), local.factor, layout, shape); }
  Operand along_others() const {
    return operand(local.along_others(), local.factor, layout, shape);
  }
};

/// The weight's codes: with scales of rows or columns (row-wise), or of the whole (tensor-wise).
ShardedCodes coded_weight(const Weights& weights, Weight& weight, Scales scales, bool keep,
                          CodesOrder order) {
  const Tensor& whole = weight.parameter->use();
  return {weights.scaling() == Scaling::tensorwise
              ? weights.codes(weight, keep, order)
              : quantize(whole.local(), DType::f8e4m3, scales, order),
          whole.layout(), whole.shape()};
}

/// Codes of activations or of their gradient: row-wise with these scales.
ShardedCodes coded(const Tensor& x, DType type, Scaling scaling, Scales scales, CodesOrder order) {
  return {quantize(x.local(), type, scaling == Scaling::tensorwise ? Scales::whole : scales, order),
          x.layout(), x.shape()};
}

/// The order for a product that sums over the last dim, for one that sums over the others, or for
/// these two.
CodesOrder order_for(bool along_last, bool along_others) {
  return !along_others ? CodesOrder::as_x : along_last ? CodesOrder::both : CodesOrder::turned;
}

Tensor gradient_of_x(const SavedForward& saved, const ShardedCodes& dy) {
  const ShardedCodes weight =
      coded_weight(*saved.weights, *saved.weight, Scales::columns, true, CodesOrder::turned);
  return gradient_of_input(dy.along_last(), weight.along_others(), saved.x_type);
}

Tensor gradient_of_weight(const SavedForward& saved, const ShardedCodes& dy) {
  const Scaling scaling = saved.weights->scaling();
  Operand x = saved.codes;
  if (scaling == Scaling::rowwise) {
    x = coded(saved.x.get("Float8Linear"), DType::f8e4m3, scaling, Scales::columns,
              CodesOrder::turned)
            .along_others();
  }
  return gradient_of_weight(dy.along_others(), x, saved.weight->parameter->use().dtype());
}

void backward_of(const SavedForward& saved, std::span<const Tensor> grads, std::span<Tensor> out) {
  if (grad_enabled()) {
    fail({.thing = "Float8Linear",
          .wrong = "the graph of its gradient was requested (create_graph)",
          .advice = "rounding to 8 bits has no second derivative; leave the layer out of 'on'"});
  }
  saved.values.get_unfilled("Float8Linear");
  const Scaling scaling = saved.weights->scaling();
  const auto codes = [&](Scales scales, CodesOrder order) {
    return coded(grads[0], gradient_type(scaling), scaling, scales, order);
  };
  if (scaling == Scaling::tensorwise) {  // a whole's codes are those of rows and of columns
    const ShardedCodes dy = codes(Scales::whole, order_for(saved.needs_x, saved.needs_weight));
    if (saved.needs_x) {
      out[0] = gradient_of_x(saved, dy);
    }
    if (saved.needs_weight) {
      out[1] = gradient_of_weight(saved, dy);
    }
    return;
  }
  if (saved.needs_x) {
    out[0] = gradient_of_x(saved, codes(Scales::rows, CodesOrder::as_x));
  }
  if (saved.needs_weight) {
    out[1] = gradient_of_weight(saved, codes(Scales::columns, CodesOrder::turned));
  }
}

}  // namespace

void check_replaceable(const nn::Module& module) {
  const std::string what = fmt::format("module '{}'", module.name());
  if (module.kind() != "Linear") {
    fail_input({.thing = "Float8",
                .wrong = fmt::format("{} cannot be replaced", what),
                .expected = "a Linear",
                .got = fmt::format("{}", module.kind()),
                .advice = "match linear layers only"});
  }
  const nn::ParameterPointer& weight = module.parameter("weight");
  for (const std::int64_t extent : weight->value.shape()) {
    if (extent % alignment != 0) {
      fail_input({.thing = "Float8",
                  .wrong = fmt::format("{} has a weight that scaled products cannot have", what),
                  .expected = fmt::format("extents that are multiples of {}", alignment),
                  .got = to_string(weight->value.shape()),
                  .advice = "leave it out of 'on'"});
    }
  }
}

Float8Linear::Float8Linear(std::shared_ptr<nn::Module> linear, std::shared_ptr<Weights> weights)
    : linear_(std::move(linear)), weights_(std::move(weights)) {
  for (const auto& [name, parameter] : linear_->parameters()) {
    add_parameter(name, parameter);
  }
  weight_ = weights_->make(parameter("weight"));
  if (weight_->scale) {
    add_buffer("weight_scale", weight_->scale);
  }
}

std::string_view Float8Linear::kind() const { return "Float8Linear"; }
std::vector<std::string> Float8Linear::input_names() const { return linear_->input_names(); }
std::vector<nn::LayerSplit> Float8Linear::splits() const { return linear_->splits(); }

void Float8Linear::check_placements(std::span<const int> axes) const {
  const Tensor& value = weight_->parameter->value;
  Dims part = value.shape();
  for (const int axis : axes) {
    const Placement placement = value.layout().placement(axis);
    if (placement.is_shard()) {
      std::int64_t& extent = part[placement.dim()];
      const std::int64_t ranks = value.layout().mesh().axis_size(axis);
      if (extent % (ranks * alignment) != 0) {
        fail_input(
            {.thing = "Float8",
             .wrong = fmt::format("module '{}': each of {} ranks has a part of the weight {} "
                                  "that scaled products cannot have",
                                  name(), ranks, to_string(value.shape())),
             .expected = fmt::format("extents that are multiples of {}", alignment),
             .advice = "leave it out of 'on', or use fewer ranks"});
      }
      extent /= ranks;
    }
  }
}

Tensors Float8Linear::forward(const Tensors& inputs) {
  // Hooks of the replaced layer stay: parallel::set_precision provides its parameters by one.
  return linear_->call(inputs, [this](const Tensors& given) {
    Tensor y = product(input(given, 0));
    if (parameters().size() > 1) {
      y = ops::add(y, parameters()[1].second->use());
    }
    return Tensors{y};
  });
}

Tensor Float8Linear::product(const Tensor& x) {
  const Tensor& w = weight_->parameter->use();
  const Scaling scaling = weights_->scaling();
  const bool rowwise = scaling == Scaling::rowwise;
  auto saved = std::make_shared<SavedForward>(SavedForward{.weights = weights_,
                                                           .weight = weight_,
                                                           .values = SavedTensor(w),
                                                           .x = {},
                                                           .codes = {},
                                                           .x_type = x.dtype(),
                                                           .needs_x = x.requires_grad(),
                                                           .needs_weight = w.requires_grad()});
  Tensor y;
  {
    const NoGrad no_grad;
    if (!rowwise) {
      weights_->ensure();
    }
    const bool keeps_codes = !rowwise && saved->needs_weight;
    const ShardedCodes codes =
        coded(x, DType::f8e4m3, scaling, Scales::rows, order_for(true, keeps_codes));
    const ShardedCodes weight =
        coded_weight(*weights_, *weight_, Scales::rows, is_training(), CodesOrder::as_x);
    y = linear(codes.along_last(), weight.along_last(), x.dtype());
    if (keeps_codes) {
      saved->codes = codes.along_others();
    } else if (rowwise) {
      saved->x = SavedTensor(x);
    }
  }
  record_function("Float8Linear", std::vector<Tensor>{x, w}, std::vector<Tensor>{y},
                  [saved](std::span<const Tensor> grads, std::span<Tensor> out) {
                    backward_of(*saved, grads, out);
                  });
  return y;
}

}  // namespace float8
