// Between the memories of devices: to_device.
module;
#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {
namespace {

struct ToDeviceArgs {
  Device device;
  Device from;  // the operand's: its gradient returns there
};

void infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void move(const Call& call, Tensors& out) {
  const Tensor& x = call.in[0];
  const Device device = call.args<ToDeviceArgs>().device;
  out.push_back(x.device() == device ? detached(x) : copied_to(x, device));
}

void rule(const RuleContext& context, Strategies& strategies) {
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    rules::same_dim(context, strategies, d);
  }
  rules::moves_elements(context, strategies);
}

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = to_device(grads[0], context.args<ToDeviceArgs>().from);
}

const Op& to_device_op =
    register_op<ToDeviceArgs>({.schema = "to_device(x)",
                               .infer = infer,
                               .view = move,
                               .rule = rule,
                               .backward = backward,
                               .aliasing = Aliasing::sometimes,
                               .moves_elements = true,
                               .about = "x in the memory of a device, copied where it is not."});

}  // namespace

Tensor to_device(const Tensor& x, Device device) {
  operands::given("to_device", "x", x);
  return x.device() == device ? x : call_one(to_device_op, {x}, ToDeviceArgs{device, x.device()});
}

}  // namespace tessera::ops
