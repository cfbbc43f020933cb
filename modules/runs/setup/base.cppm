export module tessera.runs:base;

import tessera.base;
import tessera.checkpoint;
import tessera.nn;
import :training_run;

export namespace tessera::runs {

/// What the checkpoints of a run leave out: the weights of model.from that `model`, with its styles
/// applied, does not train; with run.base_hash. Nothing is left out with checkpoint.weights =
/// "all", and where model.from is a checkpoint that leaves out weights itself or has low-rank
/// updates.
/// Null: without model.from.
std::shared_ptr<const CheckpointBase> checkpoint_base(const Run& run, nn::Module& model);

}  // namespace tessera::runs
