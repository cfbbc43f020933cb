// The gated feed-forward part. Shapes: C features of the model, F of the layer.
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

Tensor gated(Activation activation, const Tensor& gate, const Tensor& up) {
  return activation == Activation::silu ? ops::swiglu(gate, up)
                                        : ops::mul(ops::gelu(gate, true), up);
}

}  // namespace tessera::nn
