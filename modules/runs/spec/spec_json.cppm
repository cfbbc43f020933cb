export module tessera.runs:spec_json;

import tessera.base;
import :spec;

export namespace tessera::runs {

/// The description of a run from what to_json() makes of it, as a checkpoint has it. Relative paths
/// are seen from `folder`. Nothing is in RunSpec::given: it is a record, and was checked when the
/// run began. Errors (input) that begin with `where`: not such a JSON; a key that this version does
/// not know; a value that does not fit its key.
RunSpec spec_of_json(const std::string& json, const std::string& where,
                     const std::filesystem::path& folder);

}  // namespace tessera::runs
