module tessera.runs:other_layout;

import tessera.base;
import :spec;

// A run that is computed again by another layout.

namespace tessera::runs {

/// The run with the sections mesh, parallel and plugins, and train.micro_batch, threads and device
/// of another config. Error (input): it is of another run.
RunSpec with_layout(RunSpec spec, const RunSpec& layout);

}  // namespace tessera::runs
