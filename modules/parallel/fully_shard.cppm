export module tessera.parallel:fully_shard;

import tessera.base;
import tessera.options;
import tessera.mesh;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import :style;
import :parallel_plan;
import :precision;

export namespace tessera::parallel {

/// Parameters, by patterns over their names, that are sharded along this dim.
struct ShardDim {
  std::vector<std::string> on = {};
  int dim = 0;
};

/// Options of fully_shard, and of the style FSDP in a config (see fully_shard_table).
struct FullyShardOptions {
  /// The axis along which parameters are sharded and the batch is split; with two, the batch is
  /// split along both and the parameters along the last. None: all axes of the mesh.
  AxisNames axis = {};
  /// Parameters are sharded along all of the axes.
  bool shard_over_all_axes = false;
  /// Patterns over the names of modules: the parameters of each module that matches, without those
  /// of matches inside of it, are gathered together. "." is the model itself.
  std::vector<std::string> groups = {"*", "."};
  /// Modules, by patterns, that match `groups` and whose parameters are gathered all together,
  /// before the first of them computes: one list for each set.
  std::vector<std::vector<std::string>> together = {};
  /// Whether forward frees whole values after their use; backward then gathers them again.
  bool reshard_after_forward = true;
  /// When forward frees whole values, each rank keeps its part of them as one of so many
  /// neighbouring ranks, which must divide the axis; backward gathers among these only. 0: forward
  /// keeps nothing more than the shards.
  std::int64_t reshard_ranks = 0;
  bool reshard_after_backward = true;
  /// How many modules ahead whole values are gathered.
  std::int64_t prefetch = 1;
  /// Whether all micro-batches but the last one keep whole gradients, which needs more memory,
  /// instead of reducing them into the shards.
  bool keeps_whole_gradients = false;
  /// Parameters of fewer elements are Replicate; their gradients are summed together.
  std::int64_t replicate_below = 0;
  /// Patterns over the names of parameters that are Replicate too.
  std::vector<std::string> ignore = {};
  /// Dims that are sharded. Where several entries match a parameter, the last one decides; without
  /// one, dim 0.
  std::vector<ShardDim> shard_dims = {};
  /// Precision of modules: whole values are gathered in this type.
  Precision precision = {};
  /// The type of reduced gradients of 16-bit ones: f32, or theirs. The sums themselves are in f32.
  DType reduce_dtype = DType::f32;
  /// A parameter that no module has used in a step, beside others of its group that were used, has
  /// the gradient 0, instead of an error.
  bool missing_gradients_are_zero = false;
  /// Entries of other styles, on other axes, which are applied before.
  std::vector<StyleEntry> styles = {};
};
/// How a config writes them: all but axis, groups and styles, which an entry has beside its
/// options.
const OptionTable<FullyShardOptions>& fully_shard_table();
/// The entries of styles that these options are, for a plan: those of options.styles, and FSDP.
/// `axes`: of the mesh.
std::vector<StyleEntry> fully_shard_entries(std::span<const std::string> axes,
                                            const FullyShardOptions& options);

/// A fully sharded model: its plan, and control by hand. Keep it as long as the model is trained.
class FullySharded {
 public:
  FullySharded(nn::Module& model, const DeviceMesh& mesh, const FullyShardOptions& options,
               plugin::Host& host);

  /// For Training, and everything else that a plan offers.
  ParallelPlan& plan() { return plan_; }
  Layout batch_layout() const { return plan_.batch_layout(); }
  /// See ParallelPlan.
  void materialize(Device device = cpu) { plan_.materialize(device); }
  void before_optimizer() { plan_.before_optimizer(); }
  void after_optimizer() { plan_.after_optimizer(); }

  /// Gathers and frees whole values by hand, and what else a program may change while it runs.
  ShardedParameters& parameters() { return *parameters_; }

 private:
  ParallelPlan plan_;
  ShardedParameters* parameters_;
};

/// Applies the style FSDP to a model: its parameters are sharded, and whole values exist only while
/// a module uses them. Errors (input): those of ParallelPlan.
///   auto sharded = parallel::fully_shard(model, mesh, {.groups = {"layers.*", "."}});
FullySharded fully_shard(nn::Module& model, const DeviceMesh& mesh,
                         const FullyShardOptions& options = {});

}  // namespace tessera::parallel
