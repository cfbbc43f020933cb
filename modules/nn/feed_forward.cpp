// Feed-forward parts. Shapes: C features of the model, F of the layer.
module;
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {

GatedMLP::GatedMLP(const FeedForwardOptions& options) : activation_(options.activation) {
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
  const Tensor& x = input(inputs, 0);                    // (..., C)
  const Tensor gate = (*gate_)(x);                       // (..., F)
  const Tensor up = (*up_)(x);                           // (..., F)
  const Tensor features = gated(activation_, gate, up);  // (..., F)
  if (const auto work = std::exchange(between_, nullptr)) {
    work();
  }
  return {(*down_)(features)};
}

void GatedMLP::compute_between(std::function<void()> work) { between_ = std::move(work); }

PlainMLP::PlainMLP(const FeedForwardOptions& options) : activation_(options.activation) {
  up_ = add_child<Linear>("up_proj", options.dim, options.width, options.bias,
                          options.standard_deviation, options.dtype);
  down_ = add_child<Linear>("down_proj", options.width, options.dim, options.bias,
                            options.standard_deviation, options.dtype);
}

std::string_view PlainMLP::kind() const { return "PlainMLP"; }
std::vector<std::string> PlainMLP::input_names() const { return {"hidden_states"}; }

Tensors PlainMLP::forward(const Tensors& inputs) {
  const Tensor features = activated(activation_, (*up_)(input(inputs, 0)));  // (..., F)
  return {(*down_)(features)};
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
  }
  fail("activated: no such activation");
}

Tensor gated(Activation activation, const Tensor& gate, const Tensor& up) {
  return activation == Activation::silu ? ops::swiglu(gate, up)
                                        : ops::mul(activated(activation, gate), up);
}

}  // namespace tessera::nn
