export module tessera.runs:saved_state;

import tessera.base;
import :training_run;

export namespace tessera::runs {

/// Compares what the run begins with to its config and model, from headers alone: the weights of
/// `model.from`, and the checkpoint `resume` if it is given. Errors (input): files that are cut or
/// wrong, a checkpoint of a run with another fingerprint or with more steps than train.steps,
/// tensors that are missing or of another shape, another optimizer's state. `weight_values` also
/// reads all weights of `model.from` for values that are not finite, as a dry run does; in a run
/// each rank looks at the weights that it loads, and no byte is read twice for it.
StartPoint check_stored(const Run& run, const std::optional<std::string>& resume,
                        bool weight_values);

}  // namespace tessera::runs
