export module tessera.plugin:stamp;

import tessera.base;
import :registrar;

export namespace tessera::plugin {

/// Something that must be equal in the host and in a plugin, e.g. {"compiler", "clang 19"}.
struct Fact {
  std::string name;
  std::string value;
};

/// A name that a plugin provides.
struct Offer {
  std::string kind;
  std::string name;
  bool operator==(const Offer& other) const;
};

/// Content of a library's section that gate one reads without loading it.
struct Stamp {
  std::string name;
  std::string version;
  std::string description;
  std::vector<Offer> provides;
  std::vector<Fact> facts;  // the interface's fingerprint and the tool chain's facts
  std::string digest;       // of the file's content, in hex

  /// The kinds of what it provides, each once.
  std::vector<std::string> kinds() const;
};

/// A stamp, if it could be read, and every reason to refuse the library (none: it passes gate one).
struct StampReading {
  std::optional<Stamp> stamp;
  std::vector<std::string> refusals;
};

/// Gate one: reads the stamp from a library's bytes and compares it with this host. The bytes need
/// not be a valid library.
StampReading read_stamp(std::span<const std::byte> file);

/// Reasons to refuse a stamp's kinds: unknown to this host. Not part of read_stamp, because kinds
/// can be declared later.
std::vector<std::string> refused_kinds(const Stamp& stamp);

/// Reasons to refuse what register_plugin() added: it must be exactly what the stamp promises.
std::vector<std::string> refused_entries(const Stamp& stamp, const std::vector<Entry>& entries);

/// This host's side of the comparison.
std::vector<Fact> host_facts();
/// The version of this library, "0.1.0".
std::string host_version();

}  // namespace tessera::plugin
