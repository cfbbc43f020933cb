module;
#include <toml++/toml.h>
module tessera.app.config:values;

import tessera.run;
import tessera.app.base;

// Between TOML nodes, JSON and the fields of a run::RunSpec. Only the config's sources include
// this.

namespace tessera::app {

/// Reads `node` into the key's field; what does not fit is added to `problems` and the field keeps
/// its default. Returns whether it fitted.
bool read_value(const toml::node& node, const run::Key& key, const std::string& name,
                const run::Slot& slot, run::Problems& problems);

/// Makes the key's paths absolute or relative to the working directory.
void resolve_paths(const run::Key& key, const run::Slot& slot, const std::filesystem::path& folder);

/// The value as TOML writes it: 300, "adamw", [0.9, 0.95].
std::string slot_text(const run::Slot& slot);

/// The line of a file, or the argument of an override.
run::Place place_of(const toml::source_region& source, const std::string& file);
/// The place of a node; of a table that overrides have made, that of its first value.
run::Place place_of(const toml::node& node, const std::string& file);

}  // namespace tessera::app
