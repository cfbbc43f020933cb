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
  const Placement placement = resolved(wanted, x.dims());
  if (placement.is_partial()) {
    fail_input(fmt::format("module '{}': a value cannot be brought to {} by a style", module.name(),
                           to_string(placement)));
  }
  // Also when nothing moves: the gradient is brought back to the layout in which the value came.
  x = redistribute(x, x.layout().with_placement(axis, placement));
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
  module.add_pre_hook([=](nn::Module& self, Tensors& inputs) {
    if (position < inputs.size()) {
      bring(inputs[position], axis, placement, self);
    }
  });
}

void redistribute_output(nn::Module& module, std::size_t position, int axis, Placement placement) {
  module.add_hook([=](nn::Module& self, const Tensors&, Tensors& outputs) {
    if (position < outputs.size()) {
      bring(outputs[position], axis, placement, self);
    }
  });
}

}  // namespace tessera::parallel
