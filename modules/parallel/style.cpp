module;
#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <range/v3/view/enumerate.hpp>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.dtensor;
import tessera.nn;
import tessera.plugin;

namespace tessera::parallel {
namespace {

using ranges::views::enumerate;

[[maybe_unused]] const bool declared = plugin::declare_kind<ParallelStyle>();

/// Whether x is the direct result of a redistribution, which returns its gradient in the right
/// layout.
bool comes_converted(const Tensor& x) {
  const GradState* const state = grad_state(x);
  return state != nullptr && state->node && state->node->name() == "redistribute";
}

void bring(Tensor& x, int axis, Placement wanted, const char* what) {
  if (!x || !x.is_distributed()) {
    return;
  }
  if (wanted.is_shard() && (wanted.dim() >= x.dims() || wanted.dim() < -x.dims())) {
    fail_input(fmt::format(
        "{} has {} dims and cannot be redistributed to {}; choose another placement in the "
        "style's options",
        what, x.dims(), to_string(wanted)));
  }
  const Layout to = x.layout().with_placement(axis, resolved(wanted, x.dims()));
  if (to == x.layout() && (!x.requires_grad() || comes_converted(x))) {
    return;
  }
  x = redistribute(x, to);  // also where nothing moves: for the gradient
}

/// Positions and placements; a name means the value or all values nested in it.
std::vector<std::pair<std::size_t, Placement>> by_position(const nn::Module& module,
                                                           const ValuePlacements& values,
                                                           const std::vector<std::string>& names,
                                                           const char* what) {
  std::vector<std::pair<std::size_t, Placement>> all;
  for (const ValuePlacement& value : values) {
    if (value.placement && value.placement->is_partial()) {
      // No operator makes the terms of a sum from a Replicate value.
      fail_input({.thing = fmt::format("module '{}'", module.name()),
                  .wrong = fmt::format("a style cannot redistribute a value to {}",
                                       to_string(*value.placement)),
                  .expected = "Shard(dim) or Replicate",
                  .advice = "change the style's options"});
    }
    std::vector<std::size_t> positions;
    if (value.name.empty()) {
      if (!names.empty() && value.position >= names.size()) {
        fail_input(fmt::format("module '{}' ({}): has no {} at position {} (its {}s: {})",
                               module.name(), module.kind(), what, value.position, what,
                               join_words(names)));
      }
      positions.push_back(value.position);
    }
    for (const auto& [position, name] : enumerate(names)) {
      if (!value.name.empty() && (name == value.name || name.starts_with(value.name + "."))) {
        positions.push_back(position);
      }
    }
    if (positions.empty()) {
      fail_input(fmt::format("module '{}' ({}): has no {} '{}' ({}){}", module.name(),
                             module.kind(), what, shown(value.name),
                             names.empty() ? fmt::format("its {}s have no names: give a list, by "
                                                         "position",
                                                         what)
                                           : fmt::format("its {}s: {}", what, join_words(names)),
                             did_you_mean(value.name, names)));
    }
    for (const std::size_t position : positions) {
      if (value.placement) {
        all.emplace_back(position, *value.placement);
      }
    }
  }
  return all;
}

std::string call_it(const char* what, std::size_t position, const std::vector<std::string>& names) {
  return position < names.size() ? fmt::format("{} '{}'", what, names[position])
                                 : fmt::format("{} {}", what, position);
}

}  // namespace

ParallelStyle::~ParallelStyle() = default;

StageDivision ParallelStyle::divide(nn::LanguageModel& /*model*/, int /*ranks*/) {
  fail("parallel style: it says that it divides the model, and has no divide()");
}

std::shared_ptr<nn::Module> ParallelStyle::replace(const std::shared_ptr<nn::Module>&) {
  return nullptr;
}

ShardedParameters::~ShardedParameters() = default;

std::string_view placing_style(const nn::Attachments& placed, int axis) {
  const std::vector<Placer>& axes = placed.attached<Placers>().axes;
  const auto i = static_cast<std::size_t>(axis);
  return i < axes.size() ? std::string_view(axes[i].style) : std::string_view();
}

namespace {

/// Whether `placed` is to be placed on the axis now; false where it already is, in the same way.
/// Error: it is, in another way.
template <class Placed>
bool begin_placing(const StyleTarget& target, Placed& placed, const char* what, int axis,
                   Placement wanted) {
  std::vector<Placer>& axes = placed.template attach<Placers>().axes;
  axes.resize(static_cast<std::size_t>(target.mesh.ndim()));
  Placer& placed_by = axes[static_cast<std::size_t>(axis)];
  const Placement now = placed.value.layout().placement(axis);
  if (placed_by.style.empty()) {
    placed_by = {target.style, target.entry};
    return true;
  }
  if (now == wanted) {
    return false;  // tied weights under two styles that agree
  }
  fail_input({.where = target.entry,
              .wrong = fmt::format("{} '{}' is {} on axis '{}' by {}", what, placed.name,
                                   to_string(now), target.mesh.axis_name(axis), placed_by.entry),
              .advice = fmt::format("{} needs {} in module '{}'", target.style, to_string(wanted),
                                    target.module.name())});
}

/// A tensor without memory like `value`, with another placement on the axis.
Tensor placed_on(const Tensor& value, int axis, Placement placement) {
  const SpecHandle spec =
      Spec::make(value.layout().with_placement(axis, placement), value.shape(), value.dtype());
  return make_distributed(empty(local_shape(*spec), spec->dtype, meta), spec);
}

}  // namespace

void StyleTarget::place(nn::Parameter& parameter, int on_axis, Placement placement) const {
  const Placement wanted = resolved(placement, parameter.value.dims());
  if (begin_placing(*this, parameter, "parameter", on_axis, wanted)) {
    const bool trained = parameter.value.requires_grad();
    parameter.value = placed_on(parameter.value, on_axis, wanted);
    parameter.value.set_requires_grad(trained);
  }
}

void StyleTarget::place(nn::Buffer& buffer, Placement placement) const {
  const Placement wanted = resolved(placement, buffer.value.dims());
  if (begin_placing(*this, buffer, "buffer", axis, wanted)) {
    buffer.value = placed_on(buffer.value, axis, wanted);
  }
}

nn::LayerSplit StyleTarget::split(std::string_view name) const {
  nn::LayerSplit split = module.split(name);
  for (const nn::LayerSplit::ParameterPlacement& placed : split.parameters) {
    place(*placed.parameter, placed.placement);
  }
  module.use_split(name);
  return split;
}

void redistribute_inputs(nn::Module& module, const ValuePlacements& values, int axis) {
  const std::vector<std::string> names = module.input_names();
  for (const auto& target : by_position(module, values, names, "input")) {
    module.add_pre_hook(
        [axis, position = target.first, placement = target.second,
         what = call_it("input", target.first, names)](nn::Module&, Tensors& inputs) {
          if (position < inputs.size()) {
            bring(inputs[position], axis, placement, what.c_str());
          }
        });
  }
}

void redistribute_outputs(nn::Module& module, const ValuePlacements& values, int axis) {
  const std::vector<std::string> names = module.output_names();
  for (const auto& target : by_position(module, values, names, "output")) {
    module.add_conversion([axis, position = target.first, placement = target.second,
                           what = call_it("output", target.first, names)](
                              nn::Module&, const Tensors&, Tensors& outputs) {
      if (position < outputs.size()) {
        bring(outputs[position], axis, placement, what.c_str());
      }
    });
  }
}

void redistribute_input(nn::Module& module, std::size_t position, int axis, Placement placement) {
  redistribute_inputs(module, {{"", position, placement}}, axis);
}

void redistribute_output(nn::Module& module, std::size_t position, int axis, Placement placement) {
  redistribute_outputs(module, {{"", position, placement}}, axis);
}

void redistribute_around(const StyleTarget& target, std::optional<Placement> input,
                         Placement desired, Placement output) {
  if (input) {
    redistribute_input(target.module, 0, target.axis, *input);
  }
  redistribute_input(target.module, 0, target.axis, desired);
  redistribute_output(target.module, 0, target.axis, output);
}

void redistribute_around(const StyleTarget& target, std::optional<Placement> input,
                         const nn::LayerSplit& split, Placement output) {
  if (input) {
    redistribute_input(target.module, 0, target.axis, *input);
  }
  for (const auto& [position, placement] : enumerate(split.inputs)) {
    redistribute_input(target.module, position, target.axis, placement);
  }
  redistribute_output(target.module, 0, target.axis, output);
}

}  // namespace tessera::parallel
