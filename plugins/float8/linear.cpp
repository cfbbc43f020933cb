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

/// All dims but the last.
Dims row_dims(const Tensor& x) {
  Dims dims;
  for (int dim = 0; dim + 1 < x.dims(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

/// What backward needs of a forward.
struct Saved {
  std::shared_ptr<Weights> weights;
  std::shared_ptr<Weight> weight;
  SavedTensor values;  // what the weight's layer computed with: to see that it stays
  SavedTensor x;       // row-wise: its columns get scales of their own
  Quantized codes;     // of x; tensor-wise
  Layout x_layout;
  Dims x_shape;
  DType x_type = DType::f32;
  bool needs_x = false;
  bool needs_weight = false;
};

/// The weight's codes with scales over `dim` (row-wise) or of the whole (tensor-wise).
Quantized weight_codes(const Weights& weights, Weight& weight, int dim, bool keep) {
  if (weights.scaling() == Scaling::tensorwise) {
    return {Weights::codes(weight, keep), ops::reciprocal(weight.scale->value.local())};
  }
  return quantize(weight.parameter->use().local(), DType::f8e4m3, Scaling::rowwise, {dim});
}

/// [rows, 1] or [1, columns] as a factor of the columns of a result: without dims of extent 1.
Tensor as_columns(const Tensor& factor) {
  return factor.dims() == 0 ? factor : ops::view(factor, {factor.numel()});
}
/// The same for the rows of a result with two dims.
Tensor as_rows(const Tensor& factor) {
  return factor.dims() == 0 ? factor : ops::view(factor, {factor.numel(), 1});
}

Tensor gradient_of_x(const Saved& saved, const Tensor& dy) {
  const Scaling scaling = saved.weights->scaling();
  const Tensor& whole = saved.weight->parameter->use();
  const Dims last = scaling == Scaling::rowwise ? Dims{dy.dims() - 1} : Dims{};
  const Quantized g = quantize(dy.local(), gradient_type(scaling), scaling, last);
  const Quantized w = weight_codes(*saved.weights, *saved.weight, 0, true);
  const Tensor product =
      ops::linear(widened(g.codes, dy.layout(), dy.shape()),
                  ops::transpose(widened(w.codes, whole.layout(), whole.shape()), 0, 1));
  return scaled(product, g.factor, as_columns(w.factor), saved.x_type);
}

Tensor gradient_of_weight(const Saved& saved, const Tensor& dy) {
  const Scaling scaling = saved.weights->scaling();
  const Tensor& whole = saved.weight->parameter->use();
  const bool rowwise = scaling == Scaling::rowwise;
  const Quantized g =
      quantize(dy.local(), gradient_type(scaling), scaling, rowwise ? row_dims(dy) : Dims{});
  Quantized x = saved.codes;
  if (rowwise) {
    const Tensor& values = saved.x.get("Float8Linear");
    x = quantize(values.local(), DType::f8e4m3, scaling, row_dims(values));
  }
  static const Op& grad_weight = find_op("linear_grad_weight");
  const std::vector<Tensor> operands = {widened(g.codes, dy.layout(), dy.shape()),
                                        widened(x.codes, saved.x_layout, saved.x_shape)};
  const Tensor product = call(grad_weight, operands, {})[0];
  return scaled(product, as_rows(g.factor), as_columns(x.factor), whole.dtype());
}

void backward_of(const Saved& saved, std::span<const Tensor> grads, std::span<Tensor> out) {
  if (grad_enabled()) {
    fail({.thing = "Float8Linear",
          .wrong = "the graph of its gradient was requested (create_graph)",
          .advice = "rounding to 8 bits has no second derivative; leave the layer out of 'on'"});
  }
  saved.values.get_unfilled("Float8Linear");
  if (saved.needs_x) {
    out[0] = gradient_of_x(saved, grads[0]);
  }
  if (saved.needs_weight) {
    out[1] = gradient_of_weight(saved, grads[0]);
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
  weight_ = weights_->add(parameter("weight"));
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
                                             .x_layout = x.layout(),
                                             .x_shape = x.shape(),
                                             .x_type = x.dtype(),
                                             .needs_x = x.requires_grad(),
                                             .needs_weight = w.requires_grad()});
  Tensor y;
  {
    const NoGrad no_grad;
    if (!rowwise) {
      weights_->ensure();
    }
    const Quantized codes =
        quantize(x.local(), DType::f8e4m3, scaling, rowwise ? Dims{x.dims() - 1} : Dims{});
    const Quantized weight = weight_codes(*weights_, *weight_, 1, is_training());
    const Tensor sum = ops::linear(widened(codes.codes, x.layout(), x.shape()),
                                   widened(weight.codes, w.layout(), w.shape()));
    y = scaled(sum, codes.factor, as_columns(weight.factor), x.dtype());
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
