module;
#include <nlohmann/json_fwd.hpp>
module tessera.evaluation:yaml_file;

import tessera.base;

// YAML as PyYAML reads it.

namespace tessera::evaluation {

/// What stands for a value that is a function of Python's: {"!function": "module.name"}.
inline constexpr const char* function_tag = "!function";

/// The mapping of a file, with those of the files that its key `include` names below it (paths
/// beside the file). Plain words become what they are in YAML 1.1 (yes, 0x10, 1.5, ~). Errors
/// (input) with file and line: it cannot be read, is no YAML or no mapping; other tags; a name
/// twice; more than 1 MiB, 100,000 values, 32 levels or 16 files.
nlohmann::ordered_json read_yaml_file(const std::string& file);

}  // namespace tessera::evaluation
