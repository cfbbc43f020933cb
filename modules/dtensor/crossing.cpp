// Tensors that go to other ranks and whose gradients come back.
module;
#include <fmt/format.h>

#include <span>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;

namespace tessera {

Crossing cross_meshes(const Tensor& x, const Spec& from, const Layout& to, bool needs_gradient) {
  if (x && x.requires_grad() != needs_gradient) {
    fail({.thing = "cross_meshes",
          .wrong = fmt::format("needs_gradient is {}, but the tensor {} a gradient on rank {}",
                               needs_gradient, x.requires_grad() ? "needs" : "does not need",
                               current_rank()),
          .advice = "all ranks must give what the tensor's requires_grad() says"});
  }
  if (needs_gradient && !is_floating(from.dtype)) {
    fail({.thing = "cross_meshes",
          .wrong = "only floating types have gradients",
          .got = std::string(name_of(from.dtype))});
  }
  Crossing crossing;
  {
    const NoGrad no_grad;
    crossing.value = redistribute_between(x, from, to);
  }
  if (!needs_gradient || !grad_enabled()) {
    return crossing;
  }
  // A rank that only receives has no operand of the step: this leaf makes it one.
  const Tensor operand = x ? x : zeros({}).set_requires_grad();
  if (!crossing.value) {
    crossing.root = zeros({}, from.dtype);
  }
  const Layout sent = gradient_layout(to);
  const Layout received = gradient_layout(from.layout);
  const SpecHandle sent_spec = Spec::make(sent, from.shape, from.dtype);
  record_function("cross_meshes", {&operand, 1},
                  {crossing.value ? &crossing.value : &crossing.root, 1},
                  [receives = static_cast<bool>(crossing.value), sends = static_cast<bool>(x), sent,
                   received, sent_spec](std::span<const Tensor> grads, std::span<Tensor> out) {
                    const Tensor gradient = receives ? redistribute(grads[0], sent) : Tensor();
                    const Tensor moved = redistribute_between(gradient, *sent_spec, received);
                    if (sends) {
                      out[0] = moved;
                    }
                  });
  return crossing;
}

}  // namespace tessera
