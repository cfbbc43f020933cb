export module tessera.train:captures;

import tessera.base;
import tessera.tensor;
import tessera.nn;

export namespace tessera {

/// Values of the host that decide how a step goes and are known before it: a flag, a stage, a
/// temperature that the body uses as a constant. Steps with other values get programs of their
/// own. The same on all ranks. (A value that is computed within the step: see guard().)
using StepGuards = std::map<std::string, double>;

/// What a program has in it of a module, besides values: a change of it needs another program.
struct ModuleForm {
  const nn::Module* module = nullptr;
  bool training = true;
  std::size_t hooks = 0;
  std::uint64_t held = 0;  // which parameters and buffers
};
using ModuleForms = std::vector<ModuleForm>;

/// How the steps of a training, or the calls of a CapturedStep, were taken.
struct ReplayCounts {
  std::int64_t eager = 0;
  std::int64_t recorded = 0;
  std::int64_t replayed = 0;
  std::int64_t captured = 0;  // programs
  std::int64_t left = 0;      // updates that were left to the next step, or to finish_updates()
  std::string not_left = {};  // why the last program cannot leave its update; empty: it can
  std::int64_t evicted = 0;   // programs that were dropped for newer ones
  /// Replays that a guard has ended, before they changed anything; such a step counts again as what
  /// it was taken as then.
  std::int64_t given_up = 0;
  /// Why programs were captured, and how many for each reason; few texts are kept, and "others"
  /// has the rest.
  std::map<std::string, std::int64_t> reasons = {};
  /// Why the last eager step was not replayed; empty: before the recording.
  std::string refusal = {};
};

/// "6 replayed, 2 recorded, 2 others; 2 programs: the first (1), guard 'stage' is 2, was 1 (1)".
std::string to_string(const ReplayCounts& counts);

}  // namespace tessera
