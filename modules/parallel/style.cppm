export module tessera.parallel:style;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import :options;

export namespace tessera::parallel {

/// A module that a style is applied to, with the mesh and the axis.
struct StyleTarget {
  nn::Module& module;
  DeviceMesh mesh;
  int axis = 0;
  std::string style;  // the style's name
  std::string entry;  // the style with its location in the config, for errors

  int axis_size() const { return mesh.axis_size(axis); }
  /// Places a parameter on the axis (applied last on its dim). A parameter of several modules (tied
  /// weights) may be placed again in the same way. Errors (input): it was placed differently before
  /// (the text names both entries).
  void place(nn::Parameter& parameter, Placement placement) const;
};

/// What the plan must know about a style before it applies it.
struct StyleFacts {
  /// Whether every rank of the axis works on its own part of the batch.
  bool splits_batch = false;
  /// Styles that must have been applied before this one where both are used: [FSDP] after
  /// [ColwiseParallel]...
  std::vector<std::string> after;
  /// Styles that cannot be used on the same axis.
  std::vector<std::string> excludes;
  /// Whether several entries may apply the style to one module along one axis.
  bool repeatable = false;
};

/// A parallel style: changes parameters' placements and hooks a module's forward. One object for
/// each [[parallel]] entry of a config; its parameters are still on the meta device when it is
/// applied, and no rank may communicate then.
class ParallelStyle {
 public:
  static constexpr plugin::Kind plugin_kind{"style", 1, 1};
  using Factory = std::function<std::unique_ptr<ParallelStyle>(Options& options)>;

  virtual ~ParallelStyle();
  virtual StyleFacts facts() const = 0;
  /// Called for each module that the patterns match, inner ones before outer ones. Errors (input):
  /// a module that the style does not support, extents that do not divide.
  virtual void apply(const StyleTarget& target) = 0;
  /// Called when all styles have been applied: the style may allocate the parameters' memory. From
  /// here on ranks may communicate.
  virtual void materialize() {}
  /// Called before the optimizer writes the parameters.
  virtual void before_optimizer() {}
};

/// Redistributes inputs of a module to placements on the axis before each forward. Their gradients
/// are returned in the layouts in which the inputs were given, even if forward moves nothing (a
/// Partial gradient is then summed here). A value that is the direct result of such a
/// redistribution and already has the placement is not redistributed again: one sum, not two.
/// Inputs that are absent or not distributed are not changed. Errors (input): the module has no
/// such input; the placement is Partial.
void redistribute_inputs(nn::Module& module, const ValuePlacements& values, int axis);
/// The same for outputs, after forward.
void redistribute_outputs(nn::Module& module, const ValuePlacements& values, int axis);
/// One input or output, by position.
void redistribute_input(nn::Module& module, std::size_t position, int axis, Placement placement);
void redistribute_output(nn::Module& module, std::size_t position, int axis, Placement placement);
/// For a module with one input and one output: redistributes the input to `input` (if it is given)
/// and then to `desired`, and the output to `output`.
void redistribute_around(const StyleTarget& target, std::optional<Placement> input,
                         Placement desired, Placement output);

}  // namespace tessera::parallel
