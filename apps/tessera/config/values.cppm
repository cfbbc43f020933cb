module;
#include <toml++/toml.h>

#include <nlohmann/json_fwd.hpp>
module tessera.app.config:values;

import tessera.app.base;
import :keys;
import :problems;

// Between TOML nodes, JSON and the fields of a Config. Only the config's sources include this.

namespace tessera::app {

/// Reads `node` into the key's field; what does not fit is added to `problems` and the field keeps
/// its default. Returns whether it fitted.
bool read_value(const toml::node& node, const Key& key, const std::string& name, const Slot& slot,
                Problems& problems);

/// Makes the key's paths absolute or relative to the working directory.
void resolve_paths(const Key& key, const Slot& slot, const std::filesystem::path& folder);

nlohmann::ordered_json slot_json(const Slot& slot);
/// The value of a key; of a key of a list, that of the entry.
nlohmann::ordered_json json_value(const Key& key, const Config& config, std::size_t entry = 0);

/// The value as TOML writes it: 300, "adamw", [0.9, 0.95].
std::string slot_text(const Slot& slot);

/// The line of a file, or the argument of an override.
Place place_of(const toml::source_region& source, const std::string& file);
/// The place of a node; of a table that overrides have made, that of its first value.
Place place_of(const toml::node& node, const std::string& file);

}  // namespace tessera::app
