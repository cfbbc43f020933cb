module;
#include <toml++/toml.h>
module tessera.app.config:overrides;

import tessera.runs;
import tessera.app.base;

// key=value arguments: "train.steps=50", "mesh.shape=[2,2]", "parallel[0].options.output=Shard(1)".

namespace tessera::app {

/// Puts the override's value into `root`, creating the tables on its path. The value is TOML; words
/// that are not TOML values are texts, so that a shell needs no second quotes.
void apply_override(toml::table& root, const std::string& argument, runs::Problems& problems);

}  // namespace tessera::app
