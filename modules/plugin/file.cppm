export module tessera.plugin:file;

import tessera.base;

export namespace tessera::plugin {

/// Which file it is, whatever path leads to it, and whether it has changed.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  // ns
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// A library that was opened once, checked and read through that one descriptor.
struct LibraryFile {
  std::string path;  // absolute, symbolic links resolved; as given when it could not be opened
  FileIdentity identity;
  std::vector<std::byte> bytes;
  /// Why it must not be used: missing, not a plain file, or it or its folder can be changed by
  /// others than root and this user. Every line says what mends it.
  std::vector<std::string> refusals;
  std::shared_ptr<int> folder;  // descriptor of the folder, open as long as this lives
};

/// Opens, checks and reads a library; never throws for what it finds.
LibraryFile read_library_file(const std::string& path);

/// The path by which to dlopen a file that was accepted: the plain one where nobody else can
/// exchange a folder above it, else one through the folder's descriptor, so that what is loaded is
/// what was checked.
std::string loadable_path(const LibraryFile& file);

/// The identity of what `path` leads to now; all zero when there is nothing.
FileIdentity identity_of(const std::string& path);

}  // namespace tessera::plugin
