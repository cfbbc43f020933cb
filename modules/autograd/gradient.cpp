// Checks of a gradient: it has its tensor's shape, type and mesh, and memory of its own.
module;
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
module tessera.autograd;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import :pass;

namespace tessera {
namespace {

bool terms_add_up(const Layout& layout) {
  if (!layout.has_partial()) {
    return true;
  }
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const Placement placement = layout.placement(axis);
    if (placement.is_partial() && !(placement == Partial()) &&
        !(placement == Partial(ReduceOp::avg))) {
      return false;
    }
  }
  return true;
}

std::string text_of(DType dtype, const Dims& shape) {
  return fmt::format("{}{}", name_of(dtype), to_string(shape));
}

/// The gradient that the hook returns; a mode may see it, and replace it.
Tensor result_of(const GradientHook& hook, std::string_view name, const Tensor& gradient) {
  if (!modes_installed()) [[likely]] {
    return hook(gradient);
  }
  Action action{.kind = ActionKind::gradient_hook, .name = name, .in = {gradient}};
  perform(action, [&] { action.out = Tensors{hook(action.in[0])}; });
  return action.out.empty() ? Tensor() : std::move(action.out[0]);
}

}  // namespace

bool fits(const GradientTarget& target, const Tensor& gradient) {
  const SpecHandle& spec = gradient.spec();
  if (spec == target.spec && spec != nullptr) {
    return true;
  }
  if (!(gradient.shape() == target.shape) || gradient.dtype() != target.dtype ||
      (spec == nullptr) != (target.spec == nullptr)) {
    return false;
  }
  return spec == nullptr ||
         (spec->layout.mesh() == target.spec->layout.mesh() && terms_add_up(spec->layout));
}

void refuse_gradient(const std::string& what, const GradientTarget& target, const Tensor& gradient,
                     const char* advice) {
  const std::string expected =
      target.spec == nullptr
          ? fmt::format("a plain {}", text_of(target.dtype, target.shape))
          : fmt::format("{}, distributed over {}, its terms Partial of sum or avg",
                        text_of(target.dtype, target.shape), to_string(target.spec->layout.mesh()));
  const std::string got =
      gradient.is_distributed()
          ? to_string(*gradient.spec())
          : fmt::format("a plain {}", text_of(gradient.dtype(), gradient.shape()));
  fail({.thing = "backward",
        .wrong = fmt::format("{} is wrong", what),
        .expected = expected,
        .got = got,
        .advice = advice});
}

void call_hook(const GradientHook& hook, std::string_view name, Tensor& gradient) {
  const std::uint64_t version = local_of(gradient).storage().version();
  Tensor changed = result_of(hook, name, gradient);
  if (local_of(gradient).storage().version() != version) {
    fail({.thing = "backward",
          .wrong = fmt::format("a hook on a gradient of '{}' wrote the gradient in place, which "
                               "other steps may share",
                               name),
          .advice = "return a new tensor"});
  }
  if (!changed) {
    return;
  }
  const GradientTarget target{gradient.shape(), gradient.dtype(), gradient.spec()};
  if (!fits(target, changed)) {
    refuse_gradient(fmt::format("what a hook on a gradient of '{}' returns", name), target, changed,
                    "return a gradient of the same tensor");
  }
  gradient = std::move(changed);
}

bool owns_memory_alone(const Tensor& x) {
  const Tensor& memory = local_of(x);
  const Storage& storage = memory.storage();
  return x.impl()->references == 1 && memory.impl()->references == 1 && storage.references() == 1 &&
         storage.owns_memory() && memory.is_contiguous() && (x.impl()->keys & copied_view_key) == 0;
}

Tensor own_gradient(Tensor gradient) {
  static const Op& clone = find_op("clone");
  if (!grad_enabled() && gradient.requires_grad()) {
    gradient = detached(gradient);
  }
  return owns_memory_alone(gradient) ? std::move(gradient) : call_one(clone, {gradient});
}

Tensor add_gradients(Tensor& a, const Tensor& b) {
  static const Op& add = find_op("add");
  static const Op& add_in_place = find_op("add_");
  if (!(a.shape() == b.shape())) {
    fail({.thing = "backward",
          .wrong = fmt::format("two gradients of one tensor have different shapes ({} and {})",
                               to_string(a.shape()), to_string(b.shape())),
          .advice = "was a grad() set by hand?"});
  }
  struct AddArgs {  // of the operator, which is in a module above
    Dynamic<double> alpha;
  };
  const Attributes alpha = AddArgs{1.0};
  if (!grad_enabled() && owns_memory_alone(a) && !a.requires_grad() && a.dtype() == b.dtype() &&
      a.spec() == b.spec()) {
    return call_one(add_in_place, {a, b}, alpha);
  }
  return call_one(add, {a, b}, alpha);
}

}  // namespace tessera
