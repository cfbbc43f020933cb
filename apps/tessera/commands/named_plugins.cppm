module tessera.app.commands:named_plugins;

import tessera.app.base;

// The plugins that a command line or a config names.

namespace tessera::app {

/// Makes these files, and the files in these folders, known before those of the places that are
/// always searched. Before the first use of a plugin. Error (input): there is no such path; a file
/// that was named is refused.
void use_plugins(std::vector<std::string> paths);

}  // namespace tessera::app
