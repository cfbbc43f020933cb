module tessera.runs:repeated_spec;

import tessera.base;
import :spec;

// The description of a run of which something is computed again.

namespace tessera::runs {

/// Nothing that a question leads to is written where the run writes; spikes are not looked for, as
/// what they have led to is in the run's checkpoints.
void remove_outputs(RunSpec& spec);

/// The paths in plugins.paths of a description (JSON), as they are seen from a folder.
std::vector<std::string> recorded_plugins(const std::string& config,
                                          const std::filesystem::path& folder);

/// The run with the sections mesh, parallel and plugins, and train.micro_batch, threads and device
/// of another config. Error (input): it is of another run.
RunSpec with_layout(RunSpec spec, const RunSpec& layout);

}  // namespace tessera::runs
