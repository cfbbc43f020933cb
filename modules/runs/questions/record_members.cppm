module tessera.runs:record_members;

import tessera.base;
import :training_run;

// What a checkpoint says of its run for those who ask questions later.

namespace tessera::runs {

/// Members of a checkpoint's meta data, each followed by a comma: "started" (the working directory
/// and the config file, from which relative paths are seen) and "files" (those of the data, with
/// their sizes and times, by which a changed one is named).
std::string record_members(const Run& run);

}  // namespace tessera::runs
