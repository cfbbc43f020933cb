module;
#include <fmt/format.h>

#include <string>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.dtensor;
import tessera.nn;
import tessera.plugin;

namespace tessera::parallel {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<ParallelStyle>();

void bring(Tensor& x, int axis, Placement wanted, const nn::Module& module) {
  if (!x || !x.is_distributed()) {
    return;
  }
  if (wanted.is_shard() && (wanted.dim() >= x.dims() || wanted.dim() < -x.dims())) {
    fail_input(
        fmt::format("module '{}': its values have {} dims and cannot be brought to {}; "
                    "choose another placement in the style's options",
                    module.name(), x.dims(), to_string(wanted)));
  }
  const Placement placement = resolved(wanted, x.dims());
  // Also when nothing moves: the gradient is brought back to the layout in which the value came.
  x = redistribute(x, x.layout().with_placement(axis, placement));
}

/// Before the run: no operator makes terms of a sum from a whole value.
void refuse_partial(const nn::Module& module, Placement placement) {
  if (placement.is_partial()) {
    fail_input(
        fmt::format("module '{}': a style cannot bring a value to {} (expected Shard(dim) "
                    "or Replicate); change the style's options",
                    module.name(), to_string(placement)));
  }
}

}  // namespace

ParallelStyle::~ParallelStyle() = default;

void StyleTarget::place(nn::Parameter& parameter, Placement placement) const {
  const auto a = static_cast<std::size_t>(axis);
  parameter.placed_by.resize(static_cast<std::size_t>(mesh.ndim()));
  const Layout layout = parameter.value.layout();
  const Placement wanted = resolved(placement, parameter.value.dims());
  if (!parameter.placed_by[a].empty()) {
    if (layout.placement(axis) == wanted) {
      return;  // tied weights under two styles that agree
    }
    fail_input(fmt::format("{}: parameter '{}' is {} on axis '{}' by {}; {} wants {}", style,
                           parameter.name, to_string(layout.placement(axis)), mesh.axis_name(axis),
                           parameter.placed_by[a], style, to_string(wanted)));
  }
  parameter.placed_by[a] = style;
  const Spec* const spec = Spec::make(layout.with_placement(axis, wanted), parameter.value.shape(),
                                      parameter.value.dtype());
  parameter.value = make_distributed(empty(local_shape(*spec), spec->dtype, meta), spec);
  parameter.value.set_requires_grad();
}

void redistribute_input(nn::Module& module, std::size_t position, int axis, Placement placement) {
  refuse_partial(module, placement);
  module.add_pre_hook([=](nn::Module& self, Tensors& inputs) {
    if (position < inputs.size()) {
      bring(inputs[position], axis, placement, self);
    }
  });
}

void redistribute_output(nn::Module& module, std::size_t position, int axis, Placement placement) {
  refuse_partial(module, placement);
  module.add_hook([=](nn::Module& self, const Tensors&, Tensors& outputs) {
    if (position < outputs.size()) {
      bring(outputs[position], axis, placement, self);
    }
  });
}

}  // namespace tessera::parallel
