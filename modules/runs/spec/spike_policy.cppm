export module tessera.runs:spike_policy;

import tessera.base;
import :spec;

export namespace tessera::runs {

/// What is done at a step whose loss or gradient norm is far above those before it.
enum class SpikeAction : std::uint8_t {
  warn,      // the step's rows are named
  skip,      // and its update is not made
  rollback,  // the run goes back to its last checkpoint, and leaves the rows out
  stop,      // the run ends with an error
};

/// What train.on_spike says; see SpikeDetector.
struct SpikePolicy {
  double over = 4;  // spreads above the median
  SpikeAction action = SpikeAction::warn;
};

/// Nothing: steps are not looked at. Errors (input): it has another key, or a wrong value.
std::optional<SpikePolicy> spike_policy(const RunSpec& config);

}  // namespace tessera::runs
