export module tessera.runs:plugins;

import tessera.base;
import :spec;

// The plugins that a command line or a run names.

export namespace tessera::runs {

/// Makes these files, and the files in these folders, known before those of the places that are
/// always searched. Before the first use of a plugin. Error (input): there is no such path; a file
/// that was named is refused.
void use_plugins(std::vector<std::string> paths);

/// The same of `paths` and, after them, plugins.paths. Errors: those, with the key's place where it
/// is one of the run's.
void use_plugins(const RunSpec& spec, std::vector<std::string> paths = {});

}  // namespace tessera::runs
