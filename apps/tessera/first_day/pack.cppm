module tessera.app.first_day:pack;

import tessera.base;
import tessera.app.base;

// The folder that a pack unpacks to.

namespace tessera::app::first_day {

/// What the maker of a pack says of it.
struct PackFacts {
  std::string commit = {};                      // of the sources
  std::vector<std::string> architectures = {};  // of the machine code
  std::string compiler = {};                    // "nvcc 13.0"
  std::string glibc = {};                       // the oldest one that its programs run on
  bool small = false;                           // sizes for the emulator
};

struct Pack {
  std::string folder;
  std::string facts;  // JSON: version, commit, architectures, compiler, glibc, content
  std::vector<std::string> architectures;

  std::string path(const std::string& name) const;
  std::string program() const;
};

/// Writes the list of files with their hashes, and the facts.
void seal_pack(const std::string& folder, const PackFacts& facts);

/// Error (input): a file of the pack is missing or has other bytes.
Pack open_pack(const std::string& folder);

/// Makes what GPUs are compared with, in a folder that has everything else: calls of operators,
/// losses, captured steps. Errors: a run ends with one.
void record_references(const std::string& folder, bool small);

}  // namespace tessera::app::first_day
