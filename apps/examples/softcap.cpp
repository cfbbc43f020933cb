// A plugin of the kind "operator". It offers softcap(x) = cap * tanh(x / cap), which keeps
// attention's scores within bounds, and the step of the Lion optimizer (Chen et al. 2023). An
// operator says here all that it is: shapes, placements, kernel, gradient; everything else
// (autograd, distribution, reports) takes it as one of Tessera's own.
#include "softcap.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tessera/math_library.hpp>

import tessera.base;
import tessera.plugin;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

namespace {

using namespace tessera;

/// The operators' arguments that are not tensors. They may change from call to call and decide no
/// shape and no layout, so they are dynamic. The host writes the same ones: names and types are
/// compared at each call.
struct SoftcapArgs {
  Dynamic<double> cap;
};
struct LionArgs {
  Dynamic<double> lr;
  Dynamic<double> beta1;
  Dynamic<double> beta2;
  Dynamic<double> decay;
};

/// Results have the shape and type of the first operand.
void infer(const Call& call, ResultShapes& out) {
  const DType dtype = call.in[0].dtype();
  if (dtype != DType::f32) {
    fail(call.op.name + ": f32 is expected (got " + std::string(name_of(dtype)) +
         "); cast the operand");
  }
  out.push_back({call.in[0].shape(), dtype});
}

/// All operands of one shape and type.
void infer_lion(const Call& call, ResultShapes& out) {
  for (const Tensor& x : call.in) {
    if (!(x.shape() == call.in[0].shape()) || x.dtype() != call.in[0].dtype()) {
      fail(call.op.name + ": the operands differ (expected " + to_string(call.in[0].shape()) +
           ", got " + to_string(x.shape()) + "); pass tensors of one shape and type");
    }
  }
  infer(call, out);
}

void softcap_cpu(const Call& call, std::span<Tensor> out) {
  const auto cap = static_cast<float>(call.args<SoftcapArgs>().cap);
  const Tensor x = operands::contiguous(call.in[0]);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    out[0].data<float>()[i] = Softcap::value(x.data<float>()[i], cap);
  }
}

/// Element for kernels that are compiled from several operators: the structure, and the text of
/// its header.
Element softcap_element(const Call&) {
  constexpr const char* header =
#include "softcap.hpp.txt"
      ;
  return element_of<Softcap>(header);
}

/// 1 - (y / cap)^2, by operators: so it works in every layout, and can be differentiated again.
void softcap_backward(const BackwardContext& context, std::span<const Tensor> grads,
                      std::span<Tensor> out) {
  const double cap = context.args<SoftcapArgs>().cap;
  const Tensor y = context.out[0];
  out[0] = ops::sub(grads[0], ops::mul(grads[0], ops::mul_scalar(ops::square(y), 1 / (cap * cap))));
}

/// parameter -= lr * (sign(b1 * momentum + (1 - b1) * gradient) + decay * parameter);
/// momentum = b2 * momentum + (1 - b2) * gradient. In place, and in memory that may be strided.
void lion_cpu(const Call& call, std::span<Tensor>) {
  const auto args = call.args<LionArgs>();
  const auto rate = static_cast<float>(args.lr);
  const auto first = static_cast<float>(args.beta1);
  const auto second = static_cast<float>(args.beta2);
  const auto decay = static_cast<float>(args.decay);
  const Tensor p = operands::contiguous(call.in[0]);
  const Tensor m = operands::contiguous(call.in[1]);
  const Tensor g = operands::contiguous(call.in[2]);
  for (std::int64_t i = 0; i < p.numel(); ++i) {
    const float gradient = g.data<float>()[i];
    float& momentum = m.data<float>()[i];
    float& parameter = p.data<float>()[i];
    const float direction = first * momentum + (1 - first) * gradient;
    const float sign = direction > 0 ? 1.0F : direction < 0 ? -1.0F : 0.0F;
    parameter -= rate * (sign + decay * parameter);
    momentum = second * momentum + (1 - second) * gradient;
  }
  call.in[1].storage().bump_version();  // the dispatcher moves that of operand 0
  if (!p.same_as(call.in[0])) {
    operands::copy_elements(p, call.in[0]);
  }
  if (!m.same_as(call.in[1])) {
    operands::copy_elements(m, call.in[1]);
  }
}

/// Elementwise over three tensors of one layout.
void lion_rule(const RuleContext& context, Strategies& strategies) {
  for (int dim = 0; dim < context.call.in[0].dims(); ++dim) {
    rules::same_dim(context, strategies, dim);
  }
}

Op softcap() {
  return with_arguments<SoftcapArgs>({.schema = "softcap(x)",
                                      .infer = infer,
                                      .cpu = softcap_cpu,
                                      .element = softcap_element,
                                      .rule = rules::pointwise,
                                      .backward = softcap_backward,
                                      .saves_outputs = saves_all,
                                      .about = "cap * tanh(x / cap)."});
}

Op lion() {
  return with_arguments<LionArgs>({.schema = "lion_step_(parameter, momentum!, gradient)",
                                   .infer = infer_lion,
                                   .cpu = lion_cpu,
                                   .rule = lion_rule,
                                   .in_place = true,
                                   .about = "One step of Lion."});
}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<OperatorPlugin>("softcap", softcap);
  registrar.add<OperatorPlugin>("lion_step_", lion);
}
