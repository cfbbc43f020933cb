export module tessera.graph:data_parallel;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.program;

export namespace tessera::graph {

/// How a step of one rank becomes a data parallel one. In all of them the batch is split.
enum class DataParallelMode : std::uint8_t {
  /// Parameters and optimizer state are replicated. No redistribution is planned: each one is where
  /// an operator first cannot do without it.
  expand,
  /// Parameters and optimizer state are replicated; the sum of a gradient is issued where backward
  /// completes it.
  replicate,
  /// Parameters, gradients and optimizer state are sharded along dim 0. A parameter is gathered
  /// before its first use in forward, and again in backward; its gradient is reduced into shards
  /// where backward completes it. Parameters with fewer rows than the last axis has ranks are
  /// replicated.
  fully_shard,
  /// For each parameter one of the last two. The smallest parameters are replicated as long as
  /// they, their gradients and optimizer states together take at most 1/16 of the memory that
  /// activations need between forward and backward on a rank: that is little beside it, and each
  /// saves two gathers. The others are sharded.
  mixed,
};

/// "expand", "replicate", "fully_shard" or "default" (mixed). Error (input): another name.
DataParallelMode data_parallel_mode(std::string_view name);

/// Options of a mode of data parallelism.
struct DataParallelOptions {
  DataParallelMode mode = DataParallelMode::mixed;
  /// All of its axes split the batch, the first one into the largest parts. Parameters are sharded
  /// along the last axis only: on a mesh of several, this is hybrid sharding.
  DeviceMesh mesh = {};
  /// A sharded parameter is gathered again in backward; otherwise what forward has gathered is kept
  /// for it.
  bool gathers_again = true;
  /// Layouts of inputs by name, instead of those that the mode would choose: all parameters of
  /// another program, or an optimizer's state. Shards must be of dim 0 along the last axis.
  std::map<std::string, Layout> layouts = {};
  /// Parameters are gathered, and gradients summed, together up to about as many bytes: one
  /// communication for each of them would take longer. 0: 1/16 of all parameters, from 64 KiB to 16
  /// MiB.
  std::int64_t group_bytes = 0;
  /// Outputs that would be sums of the ranks' terms are reduced, so that the host can read them.
  bool reduces_outputs = true;
};

/// The data parallel step, above distribution, of a step of one rank for the whole batch: a program
/// of plain tensors, as Training records it without styles on a mesh of one rank. Inputs with
/// Role::rows are split along dim 0, and those with Role::parameter are placed. Nothing is
/// computed: the instructions run on the meta device, as distributed tensors of the options'
/// layouts, and each redistribution is an instruction of the result; lower() makes the program of
/// a rank from it.
/// Operands at a parameter's place in an instruction that writes it (the optimizer's
/// state, the gradient) has the parameter's layout. Other inputs are Replicate: they must be equal
/// on all ranks. Gradients have the layouts of their parameters.
/// The sums of losses and gradients are formed over ranks, so they differ from one rank's by
/// rounding. Random numbers are those of the global elements.
/// Errors that name the input: a batch that the mesh does not divide. Errors that name instruction
/// and module: an operator without a placement rule for its operands; memory that is addressed
/// without an operator; values that the host has read; communication; random numbers of rows of
/// a micro-batch, unless it was recorded as one of as many parts of the batch as there are ranks
/// (MicroBatch::parts).
Program data_parallel(const Program& program, const DataParallelOptions& options);

/// The layouts that data_parallel() gives the parameters, by the names of the inputs.
std::map<std::string, Layout> parameter_layouts(const Program& program,
                                                const DataParallelOptions& options);

}  // namespace tessera::graph
