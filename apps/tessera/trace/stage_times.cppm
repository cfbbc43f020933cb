export module tessera.app.trace:stage_times;

import tessera.base;
import tessera.pipeline;
import :read;

// What a model's stages have done in the steps of a trace.

export namespace tessera::app {

/// Times in milliseconds.
struct StageTimes {
  /// Means over micro-batches, steps and ranks, by stage. Of stages whose backwards are whole,
  /// `input_gradient` is the whole backward.
  std::vector<pipeline::StageCost> stages = {};
  bool splits_backward = false;  // any stage computes halves
  /// Mean of the steps: from the first rank's first action until the last rank's last one.
  double step = 0;
  /// The share of that time in which ranks compute no stage, over all ranks and steps.
  double bubble = 0;
};
/// Error (input): the run had no stages.
StageTimes stage_times(const TraceData& trace, const std::string& file);

}  // namespace tessera::app
