module;
#include <toml++/toml.h>
module tessera.app.config:toml_values;

import tessera.runs;
import tessera.app.base;

// Between TOML nodes, JSON and the fields of a runs::RunSpec. Only the config's sources include
// this.

namespace tessera::app {

/// Reads `node` into the key's field; what does not fit is added to `problems` and the field keeps
/// its default. Returns whether it fitted.
bool read_value(const toml::node& node, const runs::Key& key, const std::string& name,
                const runs::Slot& slot, runs::Problems& problems);

/// The value as TOML writes it: 300, "adamw", [0.9, 0.95].
std::string slot_text(const runs::Slot& slot);

/// The line of a file, or the argument of an override.
runs::SourceLine place_of(const toml::source_region& source, const std::string& file);
/// The place of a node; of a table that overrides have made, that of its first value.
runs::SourceLine place_of(const toml::node& node, const std::string& file);

}  // namespace tessera::app
