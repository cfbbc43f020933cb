export module tessera.parallel:style;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import :options;
import :stages;

export namespace tessera::parallel {

/// Who placed a parameter or a buffer on a mesh axis.
struct Placer {
  std::string style;  // "ColwiseParallel"; empty: no style
  std::string entry;  // its name in errors: "run.toml:31: ColwiseParallel"
};
/// Attached to parameters and buffers; by mesh axis.
struct Placers {
  std::vector<Placer> axes;
};
/// The name of the style that placed it on the axis; empty: none.
std::string_view placing_style(const nn::Attachments& placed, int axis);

/// A module that a style is applied to, with the mesh and the axes of the entry.
struct StyleTarget {
  nn::Module& module;
  nn::Module& model;  // that the plan is applied to: the module is in it
  DeviceMesh mesh;
  int axis = 0;           // the entry's axis; of several, the last; -1: it has none
  std::vector<int> axes;  // all of them, in the entry's order
  std::string style;      // the style's name
  std::string entry;      // the style with its location in the config, for errors

  int axis_size() const { return mesh.axis_size(axis); }
  /// Places a parameter on the axis (applied last on its dim). A parameter of several modules (tied
  /// weights) may be placed again in the same way. Errors (input): it was placed differently before
  /// (the text names both entries).
  void place(nn::Parameter& parameter, Placement placement) const {
    place(parameter, axis, placement);
  }
  void place(nn::Parameter& parameter, int on_axis, Placement placement) const;
  /// Places a buffer.
  void place(nn::Buffer& buffer, Placement placement) const;
  /// Places all parameters of a split that the layer declares, and tells the layer. Returns the
  /// split: what forward now needs of its inputs, and how its output comes. Error (input): the
  /// layer declares no such split.
  nn::LayerSplit split(std::string_view name) const;
};

/// Facts of a style: what it does to the modules that it is applied to, on how many axes, and what
/// it needs of them. The plan derives from this alone which entries can be combined and in which
/// order, so no style has to know another.
struct StyleFacts {
  /// Every rank of the axes works on its own part of the batch. Two styles that share an axis must
  /// agree in this, and two that split it are applied to different parameters.
  bool splits_batch = false;
  /// Every rank of the axes works on its own part of each sequence: dim 1 of a batch, in contiguous
  /// chunks. Of the styles on an axis, either all do or none, and none of them splits the batch.
  bool splits_sequence = false;
  /// Calls StyleTarget::place for parameters of the module or of modules inside.
  bool places_parameters = false;
  /// Redistributes inputs or outputs of the module.
  bool converts_values = false;
  /// Its hooks must run around all conversions of the module's values: it comes after the entries
  /// that convert them.
  bool wraps_forward = false;
  /// Keeps the parameters inside the module in memory of its own, in the layout that they have by
  /// then: it comes after the entries that place them, and no second entry can keep them too.
  bool keeps_parameters = false;
  /// Makes modules that take the places of those that it is applied to (ParallelStyle::replace).
  bool replaces_modules = false;
  /// Only low-rank updates are trained (nn::update_parameters): the plan freezes everything else.
  bool freezes_model = false;
  /// Sets in which form parameters are gathered (set_extension): it comes before the entry that
  /// keeps them, and there must be one.
  bool extends_gathers = false;
  /// Divides the model into stages along its axis (ParallelStyle::divide): each rank has the
  /// modules of its stages only, and its own part of the mesh, without the axis. It is applied to
  /// the whole model, and no other style can be on the axis.
  bool divides_model = false;
  /// Rounds values to a narrow type by scales of what a rank has, so that results depend on the
  /// layout within this rounding.
  bool rounds_by_rank = false;
  /// With virtual shards (Training::set_virtual_shards), the style gives the same bits whatever the
  /// size of its axes: it computes a micro-batch as one rank would, and sums over ranks follow the
  /// tree over the ranks, in f32. Without this, runs that need it are refused.
  bool follows_virtual_shards = false;
  /// Several entries may apply the style to one module along one axis.
  bool repeatable = false;
  /// On how many axes one entry may work: axis = ["replicate", "shard"]. 0: such an entry names no
  /// axis.
  int most_axes = 1;
  /// The split that each module must declare (nn::LayerSplit); empty: none.
  std::string needs_split = {};
};

/// Called with the reduced gradient of a parameter, which it may replace, before that is added to
/// the parameter's: the local shard of this rank, in the layout in which it is then added.
using ReductionHook = std::function<void(nn::Parameter& parameter, Tensor& gradient)>;

/// Sharded parameters whose whole values a program gathers and frees by hand, besides what the
/// style does in forward and backward. All ranks of the axis call each method together. `module`
/// is the name of a module that the style was applied to ("" is the whole model). Error: the style
/// was not applied to it.
class ShardedParameters {
 public:
  virtual ~ShardedParameters();
  /// Gathers the whole values of a module; its parameters compute with them until they are freed,
  /// here or by the next forward.
  virtual void unshard(std::string_view module) = 0;
  /// Issues the same gather and returns; unshard(), or the module's forward, completes it.
  virtual void start_unshard(std::string_view module) = 0;
  /// Frees them. After a forward whose backward is still to come, backward gathers them again.
  virtual void reshard(std::string_view module) = 0;
  /// Whether forward frees whole values after their use, from the next forward on.
  virtual void set_reshard_after_forward(bool reshard) = 0;
  /// Whether backward frees them after their use. If not, the next forward uses them again, unless
  /// parameters were written in between.
  virtual void set_reshard_after_backward(bool reshard) = 0;
  /// Which modules' values are gathered while this one computes, instead of those that followed it
  /// in the last pass.
  virtual void set_forward_prefetch(std::string_view module,
                                    const std::vector<std::string>& next) = 0;
  virtual void set_backward_prefetch(std::string_view module,
                                     const std::vector<std::string>& next) = 0;
  /// Without sync, backward keeps whole gradients, as without StepContext::sums_gradients; the next
  /// backward with sync reduces them too.
  virtual void set_gradient_sync(bool sync) = 0;
  /// Multiplies every reduced gradient; 1 at the start: gradients are sums over the ranks.
  virtual void set_gradient_factor(double factor) = 0;
  /// After the factor. Null: none.
  virtual void set_reduction_hook(ReductionHook hook) = 0;
};

/// A parallel style: changes parameters' placements and hooks a module's forward. One object for
/// each [[parallel]] entry of a config; its parameters are still on the meta device when it is
/// applied, and no rank may communicate then.
class ParallelStyle {
 public:
  static constexpr plugin::Kind plugin_kind{"style"};
  using Factory = std::function<std::unique_ptr<ParallelStyle>(Options& options)>;

  virtual ~ParallelStyle();
  virtual StyleFacts facts() const = 0;
  /// With StyleFacts::replaces_modules, called before anything else for each module that the
  /// patterns match, except the model itself: the module that takes its place and its name (see
  /// nn::Module::replace_child), on the meta device. Later entries, and this one's apply(), get the
  /// new one. Null: it stays. Errors (input): a module that the style cannot replace.
  virtual std::shared_ptr<nn::Module> replace(const std::shared_ptr<nn::Module>& module);
  /// Called for each module that the patterns match, inner ones before outer ones. Errors (input):
  /// a module that the style does not support, extents that do not divide.
  virtual void apply(const StyleTarget& target) = 0;
  /// With StyleFacts::divides_model, called instead of apply(), on every rank, before modules go:
  /// how the model is divided over `ranks` ranks. Errors (input): options that do not fit the
  /// model.
  virtual StageDivision divide(nn::LanguageModel& model, int ranks);
  /// Called after the last apply(). Errors (input): what cannot be with these modules, which are
  /// those of this rank's stages where a style divides the model.
  virtual void applied() {}
  /// Called after applied(): a text for each option that fits none of the modules. It is an error,
  /// where a style divides the model if each stage says it.
  virtual std::vector<std::string> unused() { return {}; }
  /// Called when all styles have been applied: the style may allocate the parameters' memory, on
  /// this device. From here on ranks may communicate.
  virtual void materialize(Device) {}
  /// Called when all parameters have their first values: the style may change those that it added.
  virtual void initialized() {}
  /// Called before the optimizer writes the parameters.
  virtual void before_optimizer() {}
  /// Called when the optimizer has written them.
  virtual void after_optimizer() {}
  /// What the style decided by itself when its modules were computed, and why, in a line for the
  /// table before the first step. Empty: nothing.
  virtual std::string decided() const { return {}; }
  /// Memory that is not the device's, of a style that keeps something there: a program may keep its
  /// own values there too. Null: it has none.
  virtual std::shared_ptr<MemoryPlace> memory_place() { return nullptr; }
  /// Control by hand, of a style that offers it; it lives as long as the style.
  virtual ShardedParameters* sharded_parameters() { return nullptr; }
};

/// Redistributes inputs of a module to placements on the axis before each forward. Their gradients
/// are returned in the layouts in which the inputs were given, even if forward moves nothing (a
/// Partial gradient is then summed here). A value that is the direct result of such a
/// redistribution and already has the placement is not redistributed again: one sum, not two.
/// Inputs that are absent or not distributed are not changed. Errors (input): the module has no
/// such input; the placement is Partial.
void redistribute_inputs(nn::Module& module, const ValuePlacements& values, int axis);
/// Redistributes outputs, after forward.
void redistribute_outputs(nn::Module& module, const ValuePlacements& values, int axis);
/// One input or output, by position.
void redistribute_input(nn::Module& module, std::size_t position, int axis, Placement placement);
void redistribute_output(nn::Module& module, std::size_t position, int axis, Placement placement);
/// For a module with one input and one output: redistributes the input to `input` (if it is given)
/// and then to `desired`, and the output to `output`.
void redistribute_around(const StyleTarget& target, std::optional<Placement> input,
                         Placement desired, Placement output);
/// For a layer that was split: its first input to `input` (if it is given), all inputs to what the
/// split needs, its first output to `output`.
void redistribute_around(const StyleTarget& target, std::optional<Placement> input,
                         const nn::LayerSplit& split, Placement output);

}  // namespace tessera::parallel
