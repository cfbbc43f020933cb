export module tessera.runs:stored_inputs;

import tessera.base;
import tessera.stores;
import :keys;
import :spec;

// Files and folders of a run that are in stores: their addresses in a description become copies on
// this machine before anything reads them.

export namespace tessera::runs {

/// A path as it is seen from a folder; an address as it is.
std::string path_from(const std::filesystem::path& folder, const std::string& text);

/// path_from for the value of a key that is a path, or a list of paths.
void place_paths(const Key& key, const Slot& slot, const std::filesystem::path& folder);

/// The description with a copy in place of each address that a key names which is read
/// (Key::reads), and in data.sources. What the copies have is determined once, here: before ranks
/// start, on each machine. Errors (input) that name the key: those of stores::fetch; an address of
/// a key that is written.
RunSpec with_copies(RunSpec spec);

/// The description as it was given: with the addresses in place of the copies.
RunSpec with_addresses(RunSpec spec);

}  // namespace tessera::runs
