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
struct Saved {
  std::shared_ptr<Weights> weights;
  std::shared_ptr<Weight> weight;
  SavedTensor values;  // what the weight's layer computed with: to see that it stays
  SavedTensor x;       // row-wise: its columns get scales of their own
  Operand codes;       // of x; tensor-wise
  DType x_type = DType::f32;
  bool needs_x = false;
  bool needs_weight = false;
};

/// The weight's codes: with scales of rows or columns (row-wise), or of the whole (tensor-wise).
Operand weight_operand(const Weights& weights, Weight& weight, Scales scales, bool keep) {
  const Tensor& whole = weight.parameter->use();
  const Quantized codes = weights.scaling() == Scaling::tensorwise
                              ? Weights::codes(weight, keep)
                              : quantize(whole.local(), DType::f8e4m3, scales);
  return operand(codes, whole.layout(), whole.shape());
}

/// Codes of activations or of their gradient: row-wise with these scales.
Operand quantized_operand(const Tensor& x, DType type, Scaling scaling, Scales scales) {
  const Quantized codes =
      quantize(x.local(), type, scaling == Scaling::tensorwise ? Scales::whole : scales);
  return operand(codes, x.layout(), x.shape());
}

Tensor gradient_of_x(const Saved& saved, const Operand& dy) {
  return gradient_of_input(dy, weight_operand(*saved.weights, *saved.weight, Scales::columns, true),
                           saved.x_type);
}

Tensor gradient_of_weight(const Saved& saved, const Operand& dy) {
  const Scaling scaling = saved.weights->scaling();
  Operand x = saved.codes;
  if (scaling == Scaling::rowwise) {
    x = quantized_operand(saved.x.get("Float8Linear"), DType::f8e4m3, scaling, Scales::columns);
  }
  return gradient_of_weight(dy, x, saved.weight->parameter->use().dtype());
}

void backward_of(const Saved& saved, std::span<const Tensor> grads, std::span<Tensor> out) {
  if (grad_enabled()) {
    fail({.thing = "Float8Linear",
          .wrong = "the graph of its gradient was requested (create_graph)",
          .advice = "rounding to 8 bits has no second derivative; leave the layer out of 'on'"});
  }
  saved.values.get_unfilled("Float8Linear");
  const Scaling scaling = saved.weights->scaling();
  const auto codes = [&](Scales scales) {
    return quantized_operand(grads[0], gradient_type(scaling), scaling, scales);
  };
  Operand dy;
  if (saved.needs_x) {
    dy = codes(Scales::rows);
    out[0] = gradient_of_x(saved, dy);
  }
  if (saved.needs_weight) {
    if (!saved.needs_x || scaling == Scaling::rowwise) {  // a whole's codes are those of rows
      dy = codes(Scales::columns);
    }
    out[1] = gradient_of_weight(saved, dy);
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
  auto saved = std::make_shared<Saved>(Saved{.weights = weights_,
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
    const Operand codes = quantized_operand(x, DType::f8e4m3, scaling, Scales::rows);
    y = linear(codes, weight_operand(*weights_, *weight_, Scales::rows, is_training()), x.dtype());
    if (rowwise) {
      saved->x = SavedTensor(x);
    } else {
      saved->codes = codes;
    }
  }
  record_function("Float8Linear", std::vector<Tensor>{x, w}, std::vector<Tensor>{y},
                  [saved](std::span<const Tensor> grads, std::span<Tensor> out) {
                    backward_of(*saved, grads, out);
                  });
  return y;
}

}  // namespace float8
