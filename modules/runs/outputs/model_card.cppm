export module tessera.runs:model_card;

import tessera.base;
import tessera.checkpoint;

export namespace tessera::runs {

/// A README.md for an exported model or adapter: how many steps and tokens a checkpoint's run has
/// trained it for, what it began with, the data with their hash, and every value that determines
/// the run's curve. `name` is its title, `what` a few words such as "llama, 1.3 M parameters".
/// Files have their names without the folders that they are in; the sections of outputs (`log`,
/// `sinks`, `checkpoint`) are not in it. Error (input): the checkpoint is not of a run.
std::string model_card(const CheckpointReader& checkpoint, const std::string& name,
                       const std::string& what);

}  // namespace tessera::runs
