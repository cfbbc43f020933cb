export module tessera.plugin:functions;

import tessera.base;

export namespace tessera::plugin {

/// Why a folder of this process (which makes it where it does not exist) cannot hold generated
/// code: somebody besides this user and root could change it (and how to close the way). "": it
/// can.
std::string refusal_of_folder(const std::string& folder);

/// A library of plain functions that this program has generated: no plugin, and with nothing to
/// register. It stays loaded for the life of the process, and nobody else sees its symbols.
class FunctionLibrary {
 public:
  /// Errors (input): somebody else could have changed the file (each way, and how to close it); it
  /// cannot be loaded.
  explicit FunctionLibrary(const std::string& file);

  /// A function with C linkage. Error: there is none of this name.
  void* find(const std::string& name) const;

 private:
  std::string file_;
  void* handle_ = nullptr;
};

}  // namespace tessera::plugin
