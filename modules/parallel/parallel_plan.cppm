export module tessera.parallel:parallel_plan;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;
import :options;
import :stages;
import :style;

export namespace tessera::parallel {

/// The mesh axes of an entry, by name: "shard", or {"replicate", "shard"}.
class AxisNames {
 public:
  AxisNames() = default;
  AxisNames(const char* name) : names_{name} {}
  AxisNames(std::string name) : names_{std::move(name)} {}
  AxisNames(std::initializer_list<const char*> names) : names_(names.begin(), names.end()) {}
  AxisNames(std::vector<std::string> names) : names_(std::move(names)) {}
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

/// One [[parallel]] entry of a config, or of a call of apply().
struct StyleEntry {
  std::string style;
  AxisNames axis = {};               // none: of a style that has no axis
  std::vector<std::string> on = {};  // patterns over qualified names
  std::string options = "{}";        // a JSON object
  std::string where = {};            // "run.toml:31", for errors; may be empty
  /// Makes a style of the program itself, whose name in texts is `style`. Without it, `style` is
  /// the name of a plugin's.
  ParallelStyle::Factory make = {};
};

/// Modules that a style was applied to, for the table before the first step.
struct StyleSummary {
  std::string style;
  std::string axis;  // "shard", or "replicate, shard"
  int modules = 0;
  std::int64_t parameters = 0;  // elements, of the whole model, or of the rank's stages
  bool divides_model = false;
  std::string place = {};  // of the entry, for errors
  /// Of a model in stages: options that fit none of this rank's modules (ParallelStyle::unused).
  std::vector<std::string> unused = {};
  std::string decided = {};  // see ParallelStyle::decided(); of what was computed so far
};
/// Error (input): the first of the options that fit none of the modules.
void refuse_unused(const StyleSummary& applied);

struct ResolvedEntry;

/// Styles applied to a model on a mesh. The constructor finds every error, without communication:
/// a plan can be constructed before ranks are started, to check it. The model may be used after the
/// plan is destroyed: it keeps the styles alive.
class ParallelPlan {
 public:
  /// Makes every parameter a distributed tensor over the whole mesh (still on the meta device) and
  /// applies the entries in order. Errors (input), all with the entry's location: unknown style or
  /// axis, more axes than the style takes, a pattern that matches nothing, a module without the
  /// split that the style needs, styles that conflict or come in the wrong order (see StyleFacts),
  /// a style twice on one module (both entries are named), a model that cannot be divided as an
  /// entry says, an axis of several ranks that no style
  /// uses, a model that a plan was applied to before, wholly or until it failed. Frozen parameters
  /// stay frozen.
  ParallelPlan(nn::Module& model, const DeviceMesh& mesh, const std::vector<StyleEntry>& entries,
               plugin::Host& host);
  ~ParallelPlan();
  ParallelPlan(const ParallelPlan&) = delete;
  ParallelPlan& operator=(const ParallelPlan&) = delete;

  nn::Module& model() const { return model_; }
  /// That of the calling rank's stages, where a style divides the model.
  const DeviceMesh& mesh() const { return mesh_; }
  /// Null: every rank has the whole model.
  const Stages* stages() const { return stages_.get(); }
  /// The axes along which the batch is split.
  const std::vector<int>& batch_axes() const { return batch_axes_; }
  /// How many parts the batch has, and which is the calling rank's: row-major over batch_axes().
  int batch_parts() const;
  int batch_part() const;
  /// The axes along which sequences are split.
  const std::vector<int>& sequence_axes() const { return sequence_axes_; }
  int sequence_parts() const;
  /// The layout of a batch of rows: dim 0 sharded along batch_axes(), dim 1 along sequence_axes().
  Layout batch_layout() const;
  /// The layout of one value for each row: dim 0 sharded along batch_axes().
  Layout row_layout() const;
  /// This rank's part of whole sequences [rows, T, ...]: a chunk of dim 1; `rows` itself where
  /// sequences are not split. Error (input): the ranks cannot split them equally.
  Tensor sequence_part(const Tensor& rows) const;
  /// The batch of which `rows` [rows, chunk, ...] are this rank's: see sequence_part().
  Tensor batch_of(const Tensor& rows) const;
  std::vector<StyleSummary> summary() const;
  /// The styles, in the order of the entries.
  const std::vector<std::unique_ptr<ParallelStyle>>& styles() const { return *styles_; }

  /// Allocates every parameter's memory: first the styles', then plain memory of `device` for the
  /// rest; and gives buffers their values. Errors: it was called before; (input) a style keeps
  /// parameters in other memory.
  void materialize(Device device = cpu);
  /// An error of a forward or backward with this plan, extended by the config's entries that apply
  /// to the module in which it was raised, or to the nearest one around it, unless it has a place
  /// of its own. Kind input.
  Error explained(const Error& error) const;

  /// Call it when parameters have their first values, random or from a file of weights. A
  /// checkpoint has the values that styles derive from them.
  void initialized();
  /// Call it before the optimizer writes parameters.
  void before_optimizer();
  /// Call it when the optimizer has written them.
  void after_optimizer();

 private:
  /// Divides the model where an entry says so: `mesh_` is that of this rank's stages then, and the
  /// entries are left with what is there.
  void divide(std::vector<ResolvedEntry>& entries);
  void apply(const std::vector<ResolvedEntry>& entries);

  /// What plan_of() finds; the plan is there as long as this is.
  std::shared_ptr<ParallelPlan*> self_;
  nn::Module& model_;
  DeviceMesh mesh_;
  using Styles = std::vector<std::unique_ptr<ParallelStyle>>;
  std::shared_ptr<Styles> styles_;  // the model's modules hold it too, for their hooks
  std::unique_ptr<const Stages> stages_;
  std::vector<int> batch_axes_;
  std::vector<int> sequence_axes_;
  std::vector<StyleSummary> summary_;
  bool materialized_ = false;
  /// The entries in the order in which they were applied: the module's name and the entry.
  std::vector<std::pair<std::string, std::string>> applied_;
};

/// The plan that was applied to the model of which this is a module; null: none, or it is gone.
ParallelPlan* plan_of(const nn::Module& module);

/// Applies styles to a model, with the plugins of this process (plugin::host()): a ParallelPlan.
///   auto plan = parallel::apply(model, mesh, {{"ColwiseParallel", "tensor", {"up"}},
///                                             {"RowwiseParallel", "tensor", {"down"}}});
ParallelPlan apply(nn::Module& model, const DeviceMesh& mesh,
                   const std::vector<StyleEntry>& entries);

}  // namespace tessera::parallel
