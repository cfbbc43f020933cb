export module tessera.parallel:fully_shard;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.nn;
import tessera.plugin;
import :style;
import :plan;

export namespace tessera::parallel {

struct FullyShardOptions {
  /// The axis along which parameters are sharded and the batch is split; with two, the batch is
  /// split along both and the parameters along the last. None: all axes of the mesh.
  AxisNames axis = {};
  /// Patterns over the names of modules: the parameters of each module that matches, without those
  /// of matches inside of it, are gathered together. "." is the model itself.
  std::vector<std::string> groups = {"*", "."};
  /// Whether forward frees whole values after their use; backward then gathers them again.
  bool reshard_after_forward = true;
  /// How many modules ahead whole values are gathered.
  std::int64_t prefetch = 1;
  /// Whether all micro-batches but the last one keep whole gradients, which needs more memory,
  /// instead of reducing them into the shards.
  bool keeps_whole_gradients = false;
  /// Parameters of fewer elements are Replicate; their gradients are summed together.
  std::int64_t replicate_below = 0;
  /// Entries of other styles, on other axes, which are applied before.
  std::vector<StyleEntry> styles = {};
};

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
