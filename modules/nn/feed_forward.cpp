// Feed-forward parts. Shapes: C features of the model, F of the layer.
module;
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import :whole_sums;
import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

void GateLimits::check() const {
  for (const double value : {most, slope}) {
    if (!(value >= 0) || !std::isfinite(value)) {
      fail_input({.thing = "feed-forward part",
                  .wrong = "the limit and the slope of a gate are numbers from 0",
                  .got = fmt::format("{}, {}", most, slope)});
    }
  }
}

namespace {

/// The number below which this share of a normal distribution with mean 0 and deviation 1 is.
double normal_quantile(double share) {
  double low = -40;
  double high = 40;
  for (int halving = 0; halving < 200; ++halving) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < share ? low : high) = middle;
  }
  return high;
}

/// What is below the mean of the last dim and `deviations` of its standard deviations becomes 0,
/// and that is subtracted from all others. Features may be split over ranks.
Tensor sparse(const Tensor& gate, double deviations) {
  const Tensor mean = whole(ops::mean(gate, {-1}, true));
  const Tensor centred = ops::sub(gate, mean);
  const Tensor deviation = ops::sqrt(whole(ops::mean(ops::square(centred), {-1}, true)));
  return ops::relu(ops::sub(centred, ops::mul_scalar(deviation, deviations)));
}

}  // namespace

GatedMLP::GatedMLP(const FeedForwardOptions& options)
    : activation_(options.activation), limits_(options.limits), sparsity_(options.sparsity) {
  options.limits.check();
  if (!(sparsity_ >= 0 && sparsity_ < 1)) {
    fail_input({.thing = "feed-forward part",
                .wrong = "the share of a gate's features that are 0 is from 0 to below 1",
                .got = fmt::format("{}", sparsity_)});
  }
  const auto projection = [&](const char* name, std::int64_t in, std::int64_t out) {
    return add_child<Linear>(name, in, out, options.bias, options.standard_deviation,
                             options.dtype);
  };
  gate_ = projection("gate_proj", options.dim, options.width);
  up_ = projection("up_proj", options.dim, options.width);
  down_ = projection("down_proj", options.width, options.dim);
}

std::string_view GatedMLP::kind() const { return "GatedMLP"; }
std::vector<std::string> GatedMLP::input_names() const { return {"hidden_states"}; }

Tensors GatedMLP::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);  // (..., C)
  Tensor gate = (*gate_)(x);           // (..., F)
  if (sparsity_ > 0) {
    gate = sparse(gate, normal_quantile(sparsity_));
  }
  const Tensor up = (*up_)(x);                                    // (..., F)
  const Tensor features = gated(activation_, limits_, gate, up);  // (..., F)
  if (const auto work = std::exchange(between_, nullptr)) {
    work();
  }
  return {(*down_)(features)};
}

void GatedMLP::compute_between(std::function<void()> work) { between_ = std::move(work); }

namespace {

double softplus_inverse(double value) { return std::log(std::expm1(value)); }

}  // namespace

LearnedActivation::LearnedActivation(DType dtype) {
  const auto learned = [&](const char* name, double value) {
    add_parameter(name,
                  std::make_shared<Parameter>(
                      Dims{1}, dtype,
                      Initialization{.kind = Initialization::Kind::constant, .value = value}));
  };
  learned("alpha_p", softplus_inverse(0.8));
  learned("alpha_n", softplus_inverse(0.3));
  const auto fixed = [&](const char* name, double value) {
    add_buffer(name, std::make_shared<Buffer>(full({}, value, dtype), true));
  };
  fixed("beta", 0.5);
  fixed("eps", -1e-6);
}

std::string_view LearnedActivation::kind() const { return "LearnedActivation"; }
std::vector<std::string> LearnedActivation::input_names() const { return {"input"}; }

Tensors LearnedActivation::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);
  const Tensor positive = ops::softplus(parameter("alpha_p")->use());
  const Tensor& beta = buffers()[0].second->value;
  const Tensor& eps = buffers()[1].second->value;
  const Tensor negative = ops::add(ops::softplus(parameter("alpha_n")->use()), beta);
  const Tensor linear = ops::mul(x, beta);
  const Tensor above = ops::mul(ops::square(x), positive);
  const Tensor below = ops::mul(ops::sub(ops::expm1(ops::minimum(x, eps)), x), negative);
  return {ops::add(ops::where(ops::gt(x, 0.0), above, below), linear)};
}

PlainMLP::PlainMLP(const FeedForwardOptions& options) : activation_(options.activation) {
  up_ = add_child<Linear>("up_proj", options.dim, options.width, options.bias,
                          options.standard_deviation, options.dtype);
  down_ = add_child<Linear>("down_proj", options.width, options.dim, options.bias,
                            options.standard_deviation, options.dtype);
  if (activation_ == Activation::xielu) {
    learned_ = add_child<LearnedActivation>("act_fn", options.dtype);
  }
}

std::string_view PlainMLP::kind() const { return "PlainMLP"; }
std::vector<std::string> PlainMLP::input_names() const { return {"hidden_states"}; }

Tensors PlainMLP::forward(const Tensors& inputs) {
  const Tensor up = (*up_)(input(inputs, 0));  // (..., F)
  return {(*down_)(learned_ ? (*learned_)(up) : activated(activation_, up))};
}

Tensor activated(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::silu:
      return ops::silu(x);
    case Activation::gelu_tanh:
      return ops::gelu(x, true);
    case Activation::gelu:
      return ops::gelu(x, false);
    case Activation::relu:
      return ops::relu(x);
    case Activation::squared_relu:
      return ops::square(ops::relu(x));
    case Activation::xielu:
      break;  // it has parameters
  }
  fail("activated: no such activation");
}

Tensor gated(Activation activation, const GateLimits& limits, const Tensor& gate,
             const Tensor& up) {
  if (limits.most > 0) {
    const Tensor most = ops::clamp(gate, -std::numeric_limits<double>::infinity(), limits.most);
    const Tensor slopes = ops::sigmoid(ops::mul_scalar(most, limits.slope));
    const Tensor raised = ops::add_scalar(ops::clamp(up, -limits.most, limits.most), 1);
    return ops::mul(raised, ops::mul(most, slopes));
  }
  return activation == Activation::silu ? ops::swiglu(gate, up)
                                        : ops::mul(activated(activation, gate), up);
}

}  // namespace tessera::nn
