export module tessera.plugin:file;

import tessera.base;

export namespace tessera::plugin {

/// Identifies a file, whatever path leads to it, and shows whether it has changed.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  // ns
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// A library that was opened, checked and read.
struct LibraryFile {
  std::string path;  // absolute, symbolic links resolved; as given when it could not be opened
  FileIdentity identity;
  std::vector<std::byte> bytes;
  /// Why it must not be used: missing, not a plain file, or others than root and this user can
  /// change it, a library that it needs, or a folder on the way to one of them. Each line says how
  /// to fix it.
  std::vector<std::string> refusals;
};

/// Opens, checks and reads a library. Never throws because of the file.
LibraryFile read_library_file(const std::string& path);

/// The identity of the file to which `path` leads now; all zero when there is none.
FileIdentity identity_of(const std::string& path);

}  // namespace tessera::plugin
