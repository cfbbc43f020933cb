module;
#include <functional>
#include <memory>
#include <string>
#include <vector>
export module tessera.parallel:style;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import :options;

export namespace tessera::parallel {

/// A module that a style is applied to, and where.
struct StyleTarget {
  nn::Module& module;
  DeviceMesh mesh;
  int axis = 0;
  std::string style;  // the style's name, for errors

  int axis_size() const { return mesh.axis_size(axis); }
  /// Places a parameter on the axis (applied last on its dim). Errors (input): another style placed
  /// it there otherwise (both are named), or a style that owns whole parameters (FSDP) came before.
  void place(nn::Parameter& parameter, Placement placement) const;
};

/// What the plan must know of a style before it applies it.
struct StyleFacts {
  /// Whether every rank of the axis works on its own part of the batch.
  bool splits_batch = false;
  /// Styles that must have been applied before this one where both are used: [FSDP] after
  /// [ColwiseParallel]...
  std::vector<std::string> after;
  /// Styles that cannot be used on the same axis.
  std::vector<std::string> excludes;
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
  /// a module that the style cannot serve, extents that do not divide.
  virtual void apply(const StyleTarget& target) = 0;
  /// All styles have been applied: the style may give parameters their memory. Ranks may
  /// communicate from here on.
  virtual void materialize() {}
  /// The optimizer is about to write the parameters.
  virtual void before_optimizer() {}
};

/// Brings an input (by position) of a module to `placement` on the axis before each forward; its
/// gradient comes back in the layout in which the input came. Inputs that are not there, or not
/// distributed, are left alone.
void redistribute_input(nn::Module& module, std::size_t position, int axis, Placement placement);
/// The same for an output.
void redistribute_output(nn::Module& module, std::size_t position, int axis, Placement placement);

}  // namespace tessera::parallel
